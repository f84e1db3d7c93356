package main

import (
	"fmt"
	"math"

	"github.com/anishathalye/porcupine"
)

type kind int

const (
	acquire kind = iota // granted with a fence, or entered again with the same one
	look                // the holder was told that it holds the lock
	release             // one hold less
)

// An operation of one owner. Each attempt to acquire is an owner of its own.
type input struct {
	kind  kind
	owner uint64
	fence uint64
	// When the operation was over.
	returned int64
	// From when on the hold of this owner may end by itself: its validity is over, or a release was
	// sent whose effect is unknown. Such an end is an unknown release by the holder: it happens at
	// any later time, or never.
	end int64
}

// The reentrant fenced mutex: owner, holds, its fence, and the highest fence so far.
type state struct {
	owner   uint64
	holds   int
	fence   uint64
	highest uint64
	// From when on the present hold may end by itself.
	end int64
	// No operation that follows was over before this.
	now int64
}

// An end that nobody announces matters only to the next acquisition, so it is decided there. As an
// operation of its own that may happen until the end of time, it would make the search endless.
func step(now state, in input) (bool, state) {
	if now.now > in.returned {
		return false, now
	}
	isOwner := now.holds > 0 && now.owner == in.owner && now.fence == in.fence
	switch in.kind {
	case acquire:
		if isOwner {
			now.holds++
			return true, now
		}
		if now.holds > 0 {
			now.now = max(now.now, now.end)
		}
		mayTake := now.now <= in.returned && in.fence > now.highest
		return mayTake, state{in.owner, 1, in.fence, in.fence, in.end, now.now}
	case release:
		if !isOwner {
			return false, now
		}
		now.holds--
		return true, now
	default:
		return isOwner, now
	}
}

var model = porcupine.Model{
	Init: func() interface{} { return state{} },
	Step: func(now, in, _ interface{}) (bool, interface{}) {
		return step(now.(state), in.(input))
	},
	DescribeOperation: func(in, _ interface{}) string { return fmt.Sprintf("%+v", in) },
}

// What is known of one attempt to acquire.
type attempt struct {
	locks  []string
	shared bool
	asked  int64
	held   bool
	fence  uint64
	// See input.
	end int64
	// When it began to release, and whether it learned that this took the lock away.
	released int64
	known    bool
	// The last look that was taken over.
	looked int64
}

// Turns a journal into the operations on each lock. Locks that somebody has shared are no mutexes:
// they and their operations are only counted. An attempt that did not return a lock is left out: it may have taken effect or
// not, and nothing in a journal depends on that it did.
func operations(entries []entry) (map[string][]porcupine.Operation, int, int, error) {
	attempts, shared, err := learn(entries)
	if err != nil {
		return nil, 0, 0, err
	}
	histories := map[string][]porcupine.Operation{}
	for _, line := range entries {
		one := attempts[line.Claim]
		if one == nil {
			continue
		}
		in := input{owner: line.Claim, fence: one.fence, returned: line.At, end: one.end}
		from := line.At
		switch line.What {
		case "held":
			from = one.asked
		case "valid":
			// Looks at the same moment say the same, in every order: one of them is enough.
			if one.looked == line.At {
				continue
			}
			one.looked = line.At
			in.kind = look
		case "again":
			from, in.fence = line.Asked, line.Fence
		case "leave":
			from, in.kind = line.Asked, release
		case "released":
			if !one.known {
				continue
			}
			from, in.kind = one.released, release
		default:
			continue
		}
		for _, name := range one.locks {
			operation := porcupine.Operation{Input: in, Call: from, Return: line.At}
			histories[name] = append(histories[name], operation)
		}
	}
	leftOut := 0
	for name := range shared {
		leftOut += len(histories[name])
		delete(histories, name)
	}
	return histories, len(shared), leftOut, nil
}

// What becomes of each attempt, and which locks are shared.
func learn(entries []entry) (map[uint64]*attempt, map[string]bool, error) {
	attempts := map[uint64]*attempt{}
	shared := map[string]bool{}
	for _, line := range entries {
		if line.What == "ask" {
			attempts[line.Claim] = &attempt{
				locks: line.Locks, shared: line.Shared, asked: line.At, released: math.MaxInt64,
			}
			continue
		}
		one := attempts[line.Claim]
		if one == nil {
			if line.What == "fault" {
				continue
			}
			return nil, nil, fmt.Errorf("%s of claim %d has no request", line.What, line.Claim)
		}
		switch line.What {
		case "held":
			for _, name := range one.locks {
				shared[name] = shared[name] || one.shared
			}
			one.held, one.fence, one.end = true, line.Fence, line.Until
		case "valid":
			one.end = max(one.end, line.Until)
		case "release":
			one.released = line.At
		case "released":
			one.known = line.Held != nil && *line.Held
		}
	}
	for _, one := range attempts {
		if !one.known {
			one.end = min(one.end, one.released)
		}
	}
	for name, isShared := range shared {
		if !isShared {
			delete(shared, name)
		}
	}
	return attempts, shared, nil
}
