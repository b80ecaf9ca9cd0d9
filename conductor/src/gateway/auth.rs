//! API keys. Only their SHA-256 is configured and kept; a key names a tenant, and the tenant salts the KV namespace, so
//! that tenants share no cache and cannot probe each other's.

use sha2::{Digest, Sha256};

use super::error::ApiError;

/// One configured key.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey {
    tenant: String,
    sha256: [u8; 32],
}

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiKey({})", self.tenant)
    }
}

/// A key's line in the configuration that cannot be read. Never shows the line: it may hold a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an API key is configured as TENANT:SHA256, the hash in 64 hexadecimal digits (printf %s KEY | sha256sum)")]
pub struct ApiKeyError;

impl std::str::FromStr for ApiKey {
    type Err = ApiKeyError;

    fn from_str(line: &str) -> Result<Self, ApiKeyError> {
        let (tenant, hex) = line.trim().rsplit_once(':').ok_or(ApiKeyError)?;
        if tenant.is_empty() || tenant.len() > 64 || hex.len() != 64 || !hex.is_ascii() {
            return Err(ApiKeyError);
        }
        let mut sha256 = [0; 32];
        for (at, byte) in sha256.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).map_err(|_| ApiKeyError)?;
        }
        Ok(Self { tenant: tenant.into(), sha256 })
    }
}

/// The configured keys; none at all lets everybody in.
#[derive(Clone, Debug, Default)]
pub(super) struct Keys(Vec<ApiKey>);

impl Keys {
    pub(super) fn new(keys: Vec<ApiKey>) -> Self {
        Self(keys)
    }

    /// The tenant of an `Authorization` header: empty where no keys are configured.
    ///
    /// All keys are compared, and each over all bytes, so that time tells nothing of where they differ.
    pub(super) fn tenant(&self, authorization: Option<&[u8]>) -> Result<&str, ApiError> {
        if self.0.is_empty() {
            return Ok("");
        }
        let header = authorization
            .ok_or_else(|| ApiError::unauthorized("An API key is required: send `Authorization: Bearer YOUR_KEY`"))?;
        let scheme = header.get(..7).is_some_and(|s| s.eq_ignore_ascii_case(b"bearer "));
        let key = if scheme {
            &header[7..]
        } else {
            return Err(ApiError::unauthorized("The API key must come as `Authorization: Bearer YOUR_KEY`"));
        };
        let given: [u8; 32] = Sha256::digest(key).into();
        let mut found = None;
        for key in &self.0 {
            let difference = key.sha256.iter().zip(&given).fold(0, |sum, (a, b)| sum | (a ^ b));
            if std::hint::black_box(difference) == 0 {
                found = Some(key.tenant.as_str());
            }
        }
        found.ok_or_else(|| ApiError::unauthorized("The API key is not known here"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 of `abc` (FIPS 180-2, appendix B.1).
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_key_is_known_by_its_hash() {
        let keys = Keys::new(vec![
            format!("other:{}", "0".repeat(64)).parse().unwrap(),
            format!("team a:{ABC}").parse().unwrap(),
        ]);
        assert_eq!(keys.tenant(Some(b"Bearer abc")), Ok("team a"));
        assert_eq!(keys.tenant(Some(b"bearer abc")), Ok("team a"));
        for wrong in [None, Some(&b"Bearer abd"[..]), Some(b"Bearer "), Some(b"abc"), Some(b"Basic abc"), Some(b"\xff")]
        {
            assert_eq!(keys.tenant(wrong).unwrap_err().status.as_u16(), 401, "{wrong:?}");
        }
        assert_eq!(Keys::default().tenant(None), Ok(""));
    }

    #[test]
    fn a_bad_line_is_refused_and_not_shown() {
        for bad in ["", "abc", &format!(":{ABC}"), "t:abc", &format!("t:{}", &ABC[1..]), &format!("t:{}g", &ABC[1..])] {
            let error = bad.parse::<ApiKey>().unwrap_err();
            assert!(!error.to_string().contains("abc"));
        }
        assert_eq!(format!("{:?}", format!("t:{ABC}").parse::<ApiKey>().unwrap()), "ApiKey(t)");
    }
}
