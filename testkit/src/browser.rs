//! A real browser, without a window: Chromium, driven through a pair of pipes
//! (`--remote-debugging-pipe`).

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::PATIENCE;
use crate::process::Running;

/// Messages and answers end with this byte.
const END: u8 = 0;

/// How large a page is, and how it looks.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    /// In CSS pixels.
    pub width: u32,
    /// In CSS pixels.
    pub height: u32,
    /// Pixels of the picture for each CSS pixel.
    pub scale: u32,
    /// The color scheme that the user prefers.
    pub dark: bool,
}

/// A browser with one page, ended when dropped.
pub struct Browser {
    input: File,
    messages: Receiver<Value>,
    session: String,
    next: u64,
    /// The errors of the page: exceptions, and what its policy has refused.
    complaints: Vec<String>,
    _running: Running,
    _folder: TempDir,
}

impl Browser {
    /// Starts Chromium; none, with a message, if it is not installed. With `CI=true`, that is an
    /// error.
    pub fn start() -> Option<Browser> {
        let named = |name: &&str| Command::new(name).arg("--version").output().is_ok();
        let Some(program) = ["chromium", "chromium-browser", "google-chrome"]
            .into_iter()
            .find(named)
        else {
            let must = std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(!must, "Chromium is not installed: scripts/setup.sh test");
            eprintln!("Chromium is not installed: the page is not tested");
            return None;
        };
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (to, from) = (folder.path().join("to"), folder.path().join("from"));
        let made = Command::new("mkfifo").args([&to, &from]).status();
        assert!(made.is_ok_and(|made| made.success()), "no pipes");
        let options = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run \
                       --disable-background-networking --disable-component-update --disable-sync \
                       --disable-extensions --disable-dev-shm-usage --hide-scrollbars \
                       --remote-debugging-pipe";
        let line = format!(
            "exec {program} {options} --user-data-dir={data} about:blank 3<{to} 4>{from}",
            data = folder.path().join("data").display(),
            to = to.display(),
            from = from.display()
        );
        let mut command = Command::new("sh");
        command.args(["-c", &line]).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let running = Running::start(command);
        let input = File::options().write(true).open(&to).expect("a pipe");
        let output = File::open(&from).expect("a pipe");
        let mut browser = Browser {
            input,
            messages: listen(output),
            session: String::new(),
            next: 0,
            complaints: Vec::new(),
            _running: running,
            _folder: folder,
        };
        browser.attach();
        Some(browser)
    }

    fn attach(&mut self) {
        let target = self.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = self.call("Target.attachToTarget", attach);
        self.session = session["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Page", "Runtime", "Log"] {
            self.call(&format!("{domain}.enable"), json!({}));
        }
    }

    /// Sends a command and returns its result.
    #[track_caller]
    fn call(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let mut message = json!({ "id": self.next, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = self.session.clone().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(END);
        self.input.write_all(&bytes).expect("a browser that runs");
        loop {
            let message = self.messages.recv_timeout(PATIENCE);
            let message = message.unwrap_or_else(|_| panic!("no answer to {method}"));
            if message["id"] == self.next {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            self.note(&message);
        }
    }

    fn note(&mut self, message: &Value) {
        let params = &message["params"];
        match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => {
                self.complaints.push(params["exceptionDetails"].to_string());
            }
            Some("Log.entryAdded") if params["entry"]["level"] == "error" => {
                self.complaints.push(params["entry"]["text"].to_string());
            }
            _ => {}
        }
    }

    /// Sets the size and the colors of the screen.
    pub fn screen(&mut self, screen: Screen) {
        self.call(
            "Emulation.setDeviceMetricsOverride",
            json!({
                "width": screen.width,
                "height": screen.height,
                "deviceScaleFactor": screen.scale,
                "mobile": screen.width < 600,
            }),
        );
        let value = if screen.dark { "dark" } else { "light" };
        let scheme = json!({ "name": "prefers-color-scheme", "value": value });
        self.call(
            "Emulation.setEmulatedMedia",
            json!({ "features": [scheme] }),
        );
    }

    /// Opens a page.
    pub fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({ "url": url }));
    }

    /// The value of a JavaScript expression on the page.
    #[track_caller]
    pub fn value(&mut self, expression: &str) -> Value {
        let params = json!({
            "expression": expression, "returnByValue": true, "awaitPromise": true,
        });
        let result = self.call("Runtime.evaluate", params);
        let thrown = &result["exceptionDetails"];
        assert!(thrown.is_null(), "{expression}: {thrown}");
        result["result"]["value"].clone()
    }

    /// Waits until a JavaScript expression is true.
    #[track_caller]
    pub fn wait_for(&mut self, expression: &str) {
        let start = Instant::now();
        while self.value(expression) != Value::Bool(true) {
            if start.elapsed() > PATIENCE {
                let text = self.value("document.body?.innerText");
                panic!("{expression} does not become true: {text}");
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// Waits until the page shows a text.
    #[track_caller]
    pub fn shows(&mut self, text: &str) {
        let text = json!(text);
        self.wait_for(&format!(
            "(document.body?.innerText ?? '').includes({text})"
        ));
    }

    /// Presses a key, named as JavaScript names it.
    pub fn press(&mut self, key: &str) {
        let text = match key {
            "Enter" => "\r",
            one if one.chars().count() == 1 => one,
            _ => "",
        };
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            "ArrowDown" => 40,
            "ArrowUp" => 38,
            _ => 0,
        };
        for kind in ["keyDown", "keyUp"] {
            let mut params = json!({ "type": kind, "key": key, "windowsVirtualKeyCode": code });
            if kind == "keyDown" && !text.is_empty() {
                params["text"] = text.into();
            }
            self.call("Input.dispatchKeyEvent", params);
        }
    }

    /// Types a text into what has the focus.
    pub fn type_in(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Saves what the screen shows as a PNG file.
    pub fn picture(&mut self, file: &Path) {
        let shot = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        let data = shot["data"].as_str().expect("a picture");
        std::fs::write(file, decoded(data)).expect("a file is written");
    }

    /// What went wrong on the page so far.
    pub fn complaints(&mut self) -> Vec<String> {
        // All messages before this answer have arrived.
        self.value("1");
        std::mem::take(&mut self.complaints)
    }
}

fn listen(output: File) -> Receiver<Value> {
    let (send, messages) = channel();
    std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut bytes = Vec::new();
        while let Ok(1..) = output.read_until(END, &mut bytes) {
            bytes.pop();
            let message = serde_json::from_slice(&bytes);
            if message.is_ok_and(|message: Value| send.send(message).is_err()) {
                return;
            }
            bytes.clear();
        }
    });
    messages
}

/// Base64.
fn decoded(text: &str) -> Vec<u8> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u8> = text
        .bytes()
        .filter(|byte| *byte != b'=')
        .map(value)
        .collect();
    let group = |group: &[u8]| {
        let all = group.iter().enumerate();
        let bits = all.fold(0u32, |bits, (place, digit)| {
            bits | u32::from(*digit) << (18 - 6 * place)
        });
        bits.to_be_bytes()[1..group.len()].to_vec()
    };
    digits.chunks(4).flat_map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_decoded() {
        for (text, bytes) in [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo")] {
            assert_eq!(decoded(text), bytes.as_bytes());
        }
        assert_eq!(decoded("+/8="), [0xfb, 0xff]);
    }
}
