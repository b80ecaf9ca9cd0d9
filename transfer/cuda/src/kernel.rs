//! What the kernel has for NICs and GPUs to meet.

use std::path::Path;

/// Facts read from `/sys`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelFacts {
    /// `nvidia_peermem` (or its forerunner `nv_peer_mem`) is loaded.
    pub has_peer_memory: bool,
}

impl KernelFacts {
    /// Reads them below `root`, which is `/` but in tests.
    #[must_use]
    pub fn read(root: &Path) -> Self {
        // The first two are modules; the last is where MLNX_OFED's core lists those that have registered with it.
        let places =
            ["sys/module/nvidia_peermem", "sys/module/nv_peer_mem", "sys/kernel/mm/memory_peers/nv_mem/version"];
        Self { has_peer_memory: places.iter().any(|place| root.join(place).exists()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_module_counts_and_none_does_not() {
        let root = std::env::temp_dir().join(format!("kvrail-kernel-{}", std::process::id()));
        assert!(!KernelFacts::read(&root).has_peer_memory);
        std::fs::create_dir_all(root.join("sys/module/nvidia_peermem")).unwrap();
        assert!(KernelFacts::read(&root).has_peer_memory);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
