//go:build !linux

package redislock

import "time"

var started = time.Now()

func now() time.Duration { return time.Since(started) }
