//! A checked reader for GGUF files.
