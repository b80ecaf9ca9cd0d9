//! What a prefill and a decode node share.
