//! The decode service.
