//! Logits to tokens, reproducibly.
