//! The prefill service.
