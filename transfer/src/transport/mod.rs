//! Transports: ways to move slices to a peer and its slices to us.

/// A way to move bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TransportKind {
    /// Shared memory of one host: the receiver copies out of the sender's memfd.
    Shm,
    /// TCP streams.
    Tcp,
}
