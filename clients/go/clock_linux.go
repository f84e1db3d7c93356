package redislock

import (
	"time"

	"golang.org/x/sys/unix"
)

// now is the time since the boot. It goes on while the host sleeps, as leases on the server do.
func now() time.Duration {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &at); err != nil {
		panic("redislock: no CLOCK_BOOTTIME: " + err.Error()) // since Linux 2.6.39
	}
	return time.Duration(at.Nano())
}
