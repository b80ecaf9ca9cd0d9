//! Words for people, on standard error.

/// Like `eprintln!`, for a terminal that may be gone and a log whose disk may be full: what cannot be shown is dropped,
/// and whoever says it goes on.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}
