//! Threads that wait most of the time and are in a hurry when they wake.
//!
//! A thread that moves bytes or messages works for microseconds; on a machine whose every core computes, the scheduler
//! lets it wait until the computing thread has used up its slice, some milliseconds, at each of the five hops from the
//! last layer to visible. Since Linux 6.12 a thread may say that a short slice is all it wants, and is then let in at
//! once (EEVDF, `sched_setattr(2)`); its share of the core stays what it was, and no privilege is needed.

/// The shortest slice the kernel takes.
const SLICE_NS: u64 = 100_000;

/// `struct sched_attr`, first version.
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Asks for short slices for the calling thread. An older kernel ignores it; where it is refused nothing changes.
pub fn urgent() {
    let Some(mut attr) = attributes() else { return };
    // Other policies (real time, batch) were chosen by somebody who knows better.
    if attr.policy == libc::SCHED_OTHER as u32 {
        attr.runtime = SLICE_NS;
        // SAFETY: 0 names the calling thread; the kernel reads `size` bytes of a live local.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    }
}

/// Of the calling thread.
fn attributes() -> Option<SchedAttr> {
    let size = size_of::<SchedAttr>();
    let mut attr = SchedAttr::default();
    // SAFETY: 0 names the calling thread; the kernel writes at most `size` bytes to a live local.
    let done = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) };
    (done == 0).then_some(attr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gets_short_slices_and_keeps_the_rest() {
        std::thread::spawn(|| {
            let before = attributes().unwrap();
            urgent();
            let after = attributes().unwrap();
            assert_eq!((before.policy, before.nice), (after.policy, after.nice));
            // Kernels before 6.12 have no slice to show.
            if before.runtime != 0 {
                assert_eq!(after.runtime, SLICE_NS);
            }
        })
        .join()
        .unwrap();
    }
}
