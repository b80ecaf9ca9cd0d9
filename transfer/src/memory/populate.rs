//! Backing a region with memory before it is needed.

use std::sync::Weak;
use std::thread;
use std::time::Instant;

use super::{Inner, Memory};

/// Bytes a call: some ten microseconds, because the address space is locked meanwhile.
const STEP: usize = 256 << 10;
/// Pauses are so many times as long as the calls: the work takes a fifth of a core.
///
/// A low priority would cost less, and did harm: where cores are busy, a thread that hardly ever runs holds the lock of the
/// address space for as long, and a killed process keeps its sockets open until its last thread has come to its end.
const REST: u32 = 4;

/// Starts the thread; a system that has none left goes without.
pub(super) fn spawn(region: Weak<Inner>) {
    let started = thread::Builder::new().name("kvrail-populate".into()).spawn(move || run(&region));
    if let Err(error) = started {
        tracing::debug!(%error, "no thread to populate a region with");
    }
}

/// Works until all is there or the region is gone.
fn run(region: &Weak<Inner>) {
    let mut at = 0;
    // The region is let go of between steps, so that dropping it does not wait for this.
    while let Some(inner) = region.upgrade() {
        // A device's memory is there when it is allocated.
        let Memory::Host(mapping) = &inner.memory else { return };
        if at >= mapping.len() {
            return;
        }
        let began = Instant::now();
        if let Err(error) = mapping.populate(at, STEP) {
            tracing::debug!(%error, at, "a region is populated no further");
            return;
        }
        at += STEP;
        drop(inner);
        thread::sleep(began.elapsed() * REST);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;
    use std::sync::Arc;

    use super::super::{MemoryKind, Region};
    use super::*;

    /// Bytes of memory behind a shared region.
    fn resident(region: &Region) -> u64 {
        File::from(region.share().unwrap().try_clone_to_owned().unwrap()).metadata().unwrap().blocks() * 512
    }

    #[test]
    fn all_of_a_region_gets_memory_and_keeps_its_contents() {
        let len = 3 * STEP + 5000;
        let region = Region::allocate(len, MemoryKind::Shared).unwrap();
        region.write(2 * STEP as u64, b"kept");
        assert!(resident(&region) < len as u64);
        run(&Arc::downgrade(&region.0));
        assert!(resident(&region) >= len as u64);
        let mut kept = [0; 4];
        region.read(2 * STEP as u64, &mut kept);
        assert_eq!(&kept, b"kept");
    }

    #[test]
    fn a_region_that_is_gone_ends_the_work() {
        let region = Region::allocate(STEP, MemoryKind::Host).unwrap();
        let weak = Arc::downgrade(&region.0);
        drop(region);
        run(&weak);
    }
}
