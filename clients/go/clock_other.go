//go:build !linux

package redislock

import "time"

func now() time.Duration { return sinceStart() }
