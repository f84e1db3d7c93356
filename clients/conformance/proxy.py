"""A TCP proxy in front of a server that stalls, drops and cuts where a scenario says."""

from __future__ import annotations

import socket
import threading
import time


class Proxy:
    """Faults start with a request that contains a marker (`when`), or at once."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._change = threading.Condition()
        self._marker: bytes | None = None
        self._action = ""
        self._resumed = 0  # how often
        self._stalled = False
        self._refusing = False
        self._opens_nothing = False
        self._closed = False
        self._opening = 0.0  # seconds
        self._opens = threading.Lock()
        self.opened = 0  # connections so far
        self._pairs: list[tuple[socket.socket, socket.socket | None]] = []
        self.seen_at: float | None = None  # when the marked request had come, on the runner's clock
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    # ---- what scenarios say ----

    def when(self, marker: str, action: str) -> None:
        """What happens to the next request that contains the marker.

        `hold_request`, `hold_reply`: until `resume`. `drop_reply`: the connection is cut instead.
        `answer …`: this and all further ones do not reach the server, the rest is the reply.
        """
        with self._change:
            self._set(marker, action)

    def _set(self, marker: str, action: str) -> None:
        self._marker, self._action, self.seen_at = marker.encode(), action, None

    def wait_seen(self, within: float = 60.0) -> float:
        with self._change:
            assert self._change.wait_for(lambda: self.seen_at is not None, within), (
                "the marked request did not come"
            )
            return self.seen_at

    def stall(self) -> None:
        """Nothing goes through, in either direction, until `resume`."""
        with self._change:
            self._stalled = True

    def refuse(self) -> None:
        """Cuts every connection, and closes new ones at once, until `resume`."""
        with self._change:
            self._refusing = True
        self.cut()

    def open_slowly(self, seconds: float) -> None:
        """New connections get through one after the other, each after so many seconds."""
        self._opening = seconds

    def open_nothing(self) -> None:
        """Nothing goes through on new connections, until `resume`."""
        with self._change:
            self._opens_nothing = True

    def resume(self, *then: str) -> None:
        """Lets everything pass; `then` are a marker and an action for what comes from now on."""
        with self._change:
            self._stalled = self._refusing = self._opens_nothing = False
            self._marker = None
            self._resumed += 1
            if then:
                self._set(*then)
            self._change.notify_all()

    def cut(self) -> None:
        with self._change:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _close(*pair)

    def close(self) -> None:
        self._closed = True
        self._listener.close()
        self.resume()
        self.cut()

    # ---- how it is done ----

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with self._change:
            refusing = self._refusing
        if refusing:
            return _close(client)
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            return _close(client)
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._change:
            self._pairs.append((client, server))
            self.opened += 1
        state = {"holding": "", "since": 0, "dropping": False}
        threading.Thread(
            target=self._pump, args=(server, client, state, False), daemon=True
        ).start()
        self._pump(client, server, state, True)

    def _pump(
        self, source: socket.socket, sink: socket.socket, state: dict, requests: bool
    ) -> None:
        is_new = requests
        try:
            while data := source.recv(65536):
                if is_new and self._opening:
                    with self._opens:
                        time.sleep(self._opening)
                if is_new:
                    with self._change:
                        self._change.wait_for(lambda: not self._opens_nothing or self._closed)
                is_new = False
                if requests and (answer := self._mark(data, state)):
                    source.sendall(answer)
                    continue
                with self._change:
                    self._change.wait_for(lambda: self._may_pass(state, requests))
                if not requests and state["dropping"]:
                    break
                sink.sendall(data)
        except OSError:
            pass
        _close(source, sink)

    def _mark(self, data: bytes, state: dict) -> bytes | None:
        """Begins what is to happen to this request. The proxy's own answer, if there is one."""
        with self._change:
            action, _, answer = self._action.partition(" ")
            is_over = self.seen_at is not None and action != "answer"
            if self._marker is None or self._marker not in data or is_over:
                return None
            self.seen_at = time.monotonic()
            if action == "drop_reply":
                state["dropping"] = True
            elif action != "answer":
                state["holding"], state["since"] = action, self._resumed
            self._change.notify_all()
        return answer.encode() or None

    def _may_pass(self, state: dict, requests: bool) -> bool:
        if self._closed:
            return True
        if state["since"] != self._resumed:
            state["holding"] = ""
        return not self._stalled and state["holding"] != (
            "hold_request" if requests else "hold_reply"
        )


def _close(*ends: socket.socket | None) -> None:
    for end in ends:
        if end is not None:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()
