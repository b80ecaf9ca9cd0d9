//! Random numbers for generations, keys and tokens, from the kernel.

/// A random number that is never zero.
pub(crate) fn u64() -> u64 {
    loop {
        let mut bytes = [0u8; 8];
        if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) == Ok(8) {
            let value = u64::from_le_bytes(bytes);
            if value != 0 {
                return value;
            }
        }
    }
}

/// Sixteen random bytes.
pub(crate) fn token() -> [u8; 16] {
    let mut token = [0; 16];
    token[..8].copy_from_slice(&u64().to_le_bytes());
    token[8..].copy_from_slice(&u64().to_le_bytes());
    token
}
