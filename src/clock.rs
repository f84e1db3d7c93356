//! The clocks: one for leases and waits, one for fences, and what the main thread has used.

use redislock_core::time::{Micros, MonoTime, Now, WallTime};

/// The clock of leases, waits and quarantines. It runs on while the host is suspended, like the
/// clocks of holders on other hosts: a lease whose time passed during the suspension has ended when
/// the server resumes.
#[cfg(target_os = "linux")]
const LEASES: libc::clockid_t = libc::CLOCK_BOOTTIME;
/// Other systems have no second clock of this kind; on macOS this one runs on, too.
#[cfg(not(target_os = "linux"))]
const LEASES: libc::clockid_t = libc::CLOCK_MONOTONIC;

/// Added to the clock, so that holds that are older than the clock have distinct times: 50 days.
const BEFORE_THE_CLOCK: Micros = Micros(1 << 42);

/// Both clocks.
pub fn now() -> Now {
    Now {
        mono: mono(),
        wall: wall(),
    }
}

/// The wall clock.
pub fn wall() -> WallTime {
    WallTime(read(libc::CLOCK_REALTIME).unwrap_or_default().0)
}

/// The monotonic clock that leases run on.
pub fn mono() -> MonoTime {
    // A kernel without the first clock has the second one.
    let micros = read(LEASES).or_else(|| read(libc::CLOCK_MONOTONIC));
    MonoTime(micros.unwrap_or_default().0).plus(BEFORE_THE_CLOCK)
}

/// The CPU time of the current thread.
pub fn time_of_thread() -> Micros {
    read(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or_default()
}

/// The page faults of the current thread that needed no disk, such as copies of pages after a fork.
pub fn page_faults_of_thread() -> u64 {
    // Elsewhere, those of the whole process, which are at least as many.
    #[cfg(target_os = "linux")]
    const WHOSE: libc::c_int = libc::RUSAGE_THREAD;
    #[cfg(not(target_os = "linux"))]
    const WHOSE: libc::c_int = libc::RUSAGE_SELF;
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: fills in `usage`, for which all zeros are a value, too, or leaves it as it is.
    let usage = unsafe {
        libc::getrusage(WHOSE, usage.as_mut_ptr());
        usage.assume_init()
    };
    u64::try_from(usage.ru_minflt).unwrap_or(0)
}

/// The time on this clock; none if the system does not have the clock.
fn read(clock: libc::clockid_t) -> Option<Micros> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the time into `time`, or leaves it as it is.
    let status = unsafe { libc::clock_gettime(clock, &raw mut time) };
    let micros = time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000;
    (status == 0).then_some(Micros(micros))
}
