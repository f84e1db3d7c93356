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
	expire              // a lease may end: an unknown release by the holder
)

// An operation of one owner. Each attempt to acquire is an owner of its own.
type input struct {
	kind  kind
	owner uint64
	fence uint64
}

// What the owner was told: an operation that is unknown may have happened or not.
type output struct {
	unknown bool
}

// The reentrant fenced mutex: owner, holds, its fence, and the highest fence so far.
type state struct {
	owner   uint64
	holds   int
	fence   uint64
	highest uint64
}

// The states that an operation can lead to.
func step(now state, in input, out output) []state {
	var next []state
	switch in.kind {
	case acquire:
		switch {
		case now.holds == 0 && in.fence > now.highest:
			next = []state{{in.owner, 1, in.fence, in.fence}}
		case now.holds > 0 && now.owner == in.owner && now.fence == in.fence:
			now.holds++
			return []state{now}
		}
	case look:
		if now.holds > 0 && now.owner == in.owner && now.fence == in.fence {
			next = []state{now}
		}
	case release:
		if now.holds > 0 && now.owner == in.owner {
			after := now
			after.holds--
			if after.holds == 0 {
				after.owner, after.fence = 0, 0
			}
			next = []state{after}
		}
	case expire:
		if now.holds > 0 && now.owner == in.owner {
			next = []state{{highest: now.highest}}
		}
	}
	if out.unknown {
		next = append(next, now)
	}
	return next
}

var model = (&porcupine.NondeterministicModel{
	Init: func() []interface{} { return []interface{}{state{}} },
	Step: func(now, in, out interface{}) []interface{} {
		var states []interface{}
		for _, next := range step(now.(state), in.(input), out.(output)) {
			states = append(states, next)
		}
		return states
	},
	DescribeOperation: func(in, out interface{}) string {
		return fmt.Sprintf("%+v %+v", in, out)
	},
}).ToModel()

// What is known of one attempt to acquire.
type attempt struct {
	locks    []string
	asked    int64
	held     bool
	fence    uint64
	until    int64
	released int64
}

// Turns a journal into the operations on each lock. Locks that somebody shares are no mutexes: they
// are only counted.
func operations(entries []entry) (map[string][]porcupine.Operation, int) {
	attempts := map[uint64]*attempt{}
	shared := map[string]bool{}
	histories := map[string][]porcupine.Operation{}
	add := func(one *attempt, owner uint64, k kind, from, to int64, unknown bool) {
		for _, name := range one.locks {
			histories[name] = append(histories[name], porcupine.Operation{
				Input: input{k, owner, one.fence}, Output: output{unknown}, Call: from, Return: to,
			})
		}
	}
	for _, line := range entries {
		if line.What == "ask" {
			attempts[line.Claim] = &attempt{locks: line.Locks, asked: line.At}
			for _, name := range line.Locks {
				shared[name] = shared[name] || line.Shared
			}
			continue
		}
		one := attempts[line.Claim]
		if one == nil {
			continue
		}
		switch line.What {
		case "held":
			one.held, one.fence, one.until = true, line.Fence, line.Until
			add(one, line.Claim, acquire, one.asked, line.At, false)
		case "valid":
			one.until = max(one.until, line.Until)
			add(one, line.Claim, look, line.At, line.At, false)
		case "again":
			again := *one
			again.fence = line.Fence
			add(&again, line.Claim, acquire, line.Asked, line.At, false)
		case "leave":
			add(one, line.Claim, release, line.Asked, line.At, false)
		case "release":
			one.released = line.At
		case "released":
			// Without an answer, or with the answer that it was lost, it may have ended it or not.
			known := line.Held != nil && *line.Held
			to := int64(math.MaxInt64)
			if known {
				to = line.At
			}
			add(one, line.Claim, release, one.released, to, !known)
			one.released = 0
		}
	}
	for owner, one := range attempts {
		if !one.held {
			continue
		}
		if one.released != 0 {
			// It was killed while it released.
			add(one, owner, release, one.released, math.MaxInt64, true)
		}
		add(one, owner, expire, one.until, math.MaxInt64, true)
	}
	count := 0
	for name, is := range shared {
		if is {
			delete(histories, name)
			count++
		}
	}
	return histories, count
}
