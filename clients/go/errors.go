package redislock

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The kinds of errors, for errors.Is. A cancelled context is reported as the error of that context.
var (
	// ErrBusy: another client holds the lock, and the wait is over.
	ErrBusy = errors.New("another client holds the lock")
	// ErrLost: the lock was held and is no longer held. Stop what needs it.
	ErrLost = errors.New("the lock is lost")
	// ErrUnavailable: no server, no answer, or it cannot serve locks now. Trying again may help.
	ErrUnavailable = errors.New("locks are not available")
	// ErrQuarantined: the server may have forgotten grants and pauses granting. See Error.RetryAfter.
	ErrQuarantined = errors.New("the server is in quarantine")
	// ErrMisconfigured: trying again does not help, the text says what to change.
	ErrMisconfigured = errors.New("the server or the client is misconfigured")
	// ErrInvalid: the arguments can never be right.
	ErrInvalid = errors.New("invalid request")
)

// Error is what this package returns besides the errors of contexts.
type Error struct {
	Kind       error // one of the above
	Message    string
	RetryAfter time.Duration // of ErrQuarantined
	cause      error         // the end of a context
	sending    *sending      // it was sent and not answered: the server may carry it out later
}

func (e *Error) Error() string { return fmt.Sprintf("redislock: %v: %s", e.Kind, e.Message) }

// Unwrap returns the kind, and the error of a context that ended the request.
func (e *Error) Unwrap() []error {
	if e.cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.cause}
}

func failure(kind error, format string, values ...any) *Error {
	return &Error{Kind: kind, Message: fmt.Sprintf(format, values...)}
}

var (
	retryIn   = regexp.MustCompile(`retry in (\d+) ms`)
	transient = strings.Fields("UNBLOCKED ASK TRYAGAIN CLUSTERDOWN LOADING MASTERDOWN " +
		"NOREPLICAS MISCONF OOM BUSY")
	advice = map[string]string{
		"READONLY": "this server is a replica: connect to the master",
		"MOVED":    "this server is part of a cluster: use the client for a cluster",
		"NOPERM": "allow the ACL user +lock.acquire, +lock.macquire, +lock.extend, +lock.mextend, " +
			"+lock.release, +lock.mrelease, +lock.guard and the keys of its locks",
		"NOAUTH":    "give the client a user name and password",
		"WRONGPASS": "check the client's user name and password",
		"CROSSSLOT": "several keys of one lock need a common {hash tag} in a cluster",
		"WRONGTYPE": "the key holds other data: use another name for the lock",
	}
)

// refused makes the error for an error reply. followsMaster: the client finds the new master.
func refused(text string, followsMaster bool) *Error {
	code, _, _ := strings.Cut(text, " ")
	switch {
	case strings.Contains(strings.ToLower(text), "unknown command"):
		return failure(ErrMisconfigured,
			"the server has no redislock module: start it with loadmodule redislock.so")
	case code == "NOTHELD":
		return failure(ErrLost, "the command was not run")
	case code == "QUARANTINE":
		quarantined := failure(ErrQuarantined, "%s", text)
		quarantined.RetryAfter = 100 * time.Millisecond
		if found := retryIn.FindStringSubmatch(text); found != nil {
			ms, _ := strconv.Atoi(found[1])
			quarantined.RetryAfter = time.Duration(ms) * time.Millisecond
		}
		return quarantined
	case slices.Contains(transient, code) ||
		(followsMaster && (code == "READONLY" || code == "MOVED")):
		return failure(ErrUnavailable, "%s", text)
	case advice[code] != "":
		return failure(ErrMisconfigured, "%s: %s", text, advice[code])
	}
	return failure(ErrMisconfigured, "%s", text)
}
