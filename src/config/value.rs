//! What a setting may be.

use std::{
    fmt,
    net::SocketAddr,
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

use kvrail_transfer::{FaultPlan, RdmaRail, TcpRail};

/// A type that a setting can have. All sources give text; this reads it.
pub trait Value: Sized {
    /// What would be right, as it reads after "is not".
    const WHAT: &'static str;
    /// An example for error messages, if the default is none.
    const EXAMPLE: &'static str = "";
    /// Placeholder in the help text.
    const PLACEHOLDER: &'static str = "VALUE";
    /// Never printed.
    const SECRET: bool = false;
    /// The flag alone means `true`.
    const SWITCH: bool = false;
    /// Words: empty ones are a mistake, like a variable of a script that was never set, and not a way to say "none".
    const WORDS: bool = false;

    /// Reads a value; `None` where the text is none.
    fn parse(text: &str) -> Option<Self>;
}

/// Implements [`Value`] for types that read themselves.
macro_rules! from_str {
    ($($ty:ty, $what:literal, $example:literal, $placeholder:literal;)+) => {$(
        impl Value for $ty {
            const WHAT: &'static str = $what;
            const EXAMPLE: &'static str = $example;
            const PLACEHOLDER: &'static str = $placeholder;

            fn parse(text: &str) -> Option<Self> {
                text.parse().ok()
            }
        }
    )+};
}

from_str! {
    u32, "a whole number from 0 to 4294967295", "8", "N";
    u64, "a whole number, 0 or more", "8", "N";
    usize, "a whole number, 0 or more", "8", "N";
    NonZeroU32, "a whole number from 1 to 4294967295", "8", "N";
    NonZeroUsize, "a whole number, 1 or more", "8", "N";
    FaultPlan, "a fault plan: key=number,... of drop, duplicate, reorder, delay, delay_ms, flip, mask and seed", "drop=5", "PLAN";
    SocketAddr, "an IP address with a port", "127.0.0.1:0", "ADDRESS:PORT";
}

impl Value for f64 {
    const WHAT: &'static str = "a finite number";
    const EXAMPLE: &'static str = "1.5";
    const PLACEHOLDER: &'static str = "NUMBER";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok().filter(|number: &f64| number.is_finite())
    }
}

/// A share of a whole, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share(pub f64);

impl Value for Share {
    const WHAT: &'static str = "a number from 0 to 1";
    const EXAMPLE: &'static str = "0.5";
    const PLACEHOLDER: &'static str = "SHARE";

    fn parse(text: &str) -> Option<Self> {
        f64::parse(text).filter(|number| (0.0..=1.0).contains(number)).map(Self)
    }
}

/// Rails for TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpRails(pub Vec<TcpRail>);

impl Value for TcpRails {
    const WHAT: &'static str = "a list of ADDRESS[/PREFIX][@DEVICE][#RAIL], with commas between";
    const EXAMPLE: &'static str = "10.0.0.1/24@eth0,10.0.1.1/24@eth1";
    const PLACEHOLDER: &'static str = "RAILS";

    fn parse(text: &str) -> Option<Self> {
        text.split(',').map(|rail| rail.parse().ok()).collect::<Option<_>>().map(Self)
    }
}

/// NICs for RDMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaRails(pub Vec<RdmaRail>);

impl Value for RdmaRails {
    const WHAT: &'static str = "a list of DEVICE[:PORT][@GID][#RAIL], with commas between";
    const EXAMPLE: &'static str = "mlx5_0,mlx5_1";
    const PLACEHOLDER: &'static str = "NICS";

    fn parse(text: &str) -> Option<Self> {
        text.split(',').map(|rail| rail.parse().ok()).collect::<Option<_>>().map(Self)
    }
}

impl Value for bool {
    const WHAT: &'static str = "true or false";
    const PLACEHOLDER: &'static str = "true|false";
    const SWITCH: bool = true;

    fn parse(text: &str) -> Option<Self> {
        match text {
            "true" | "1" | "yes" | "on" => Some(true),
            "false" | "0" | "no" | "off" => Some(false),
            _ => None,
        }
    }
}

impl Value for String {
    const WHAT: &'static str = "a text";
    const WORDS: bool = true;
    const PLACEHOLDER: &'static str = "TEXT";

    fn parse(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| text.to_owned())
    }
}

impl Value for PathBuf {
    const WHAT: &'static str = "a path";
    const WORDS: bool = true;
    const PLACEHOLDER: &'static str = "PATH";

    fn parse(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| text.into())
    }
}

impl Value for Duration {
    const WHAT: &'static str = "a time with its unit (ms, s, m or h) of at most a year";
    const EXAMPLE: &'static str = "500ms or 30s";
    const PLACEHOLDER: &'static str = "TIME";

    fn parse(text: &str) -> Option<Self> {
        let digits = text.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = text[..digits].parse().ok()?;
        let time = match text[digits..].trim_start() {
            "ms" => Self::from_millis(number),
            "s" => Self::from_secs(number),
            "m" | "min" => Self::from_secs(number.checked_mul(60)?),
            "h" => Self::from_secs(number.checked_mul(3600)?),
            _ => return None,
        };
        // Far from where adding it to a clock overflows.
        (time <= Self::from_secs(366 * 24 * 3600)).then_some(time)
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSize(pub u64);

impl Value for ByteSize {
    const WHAT: &'static str = "a size with its unit (B, KiB, MiB, GiB or TiB)";
    const EXAMPLE: &'static str = "512MiB";
    const PLACEHOLDER: &'static str = "SIZE";

    fn parse(text: &str) -> Option<Self> {
        let digits = text.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = text[..digits].parse().ok()?;
        let unit: u64 = match text[digits..].trim_start() {
            "B" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            "TiB" => 1 << 40,
            _ => return None,
        };
        number.checked_mul(unit).map(Self)
    }
}

/// A host and a port; the host is looked up when it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort(pub String);

impl Value for HostPort {
    const WHAT: &'static str = "a host with a port";
    const EXAMPLE: &'static str = "127.0.0.1:8700";
    const PLACEHOLDER: &'static str = "HOST:PORT";

    fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let bracketed = host.starts_with('[') && host.ends_with(']');
        let plain = !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
        let port: u16 = port.parse().ok()?;
        (port > 0 && (bracketed || plain)).then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Value for Secret {
    const WHAT: &'static str = "a secret of visible ASCII characters";
    const PLACEHOLDER: &'static str = "SECRET";
    const SECRET: bool = true;
    const WORDS: bool = true;

    fn parse(text: &str) -> Option<Self> {
        (!text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic())).then(|| Self(text.to_owned()))
    }
}

/// Nothing given is `None`.
impl<T: Value> Value for Option<T> {
    const WHAT: &'static str = T::WHAT;
    const EXAMPLE: &'static str = T::EXAMPLE;
    const PLACEHOLDER: &'static str = T::PLACEHOLDER;
    const SECRET: bool = T::SECRET;
    const SWITCH: bool = T::SWITCH;
    const WORDS: bool = T::WORDS;

    fn parse(text: &str) -> Option<Self> {
        if text.is_empty() { Some(None) } else { T::parse(text).map(Some) }
    }
}

/// Separated by commas; nothing given is the empty list.
impl<T: Value> Value for Vec<T> {
    const WHAT: &'static str = T::WHAT;
    const EXAMPLE: &'static str = T::EXAMPLE;
    const PLACEHOLDER: &'static str = T::PLACEHOLDER;
    const SECRET: bool = T::SECRET;

    fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::new());
        }
        text.split(',').map(|part| T::parse(part.trim())).collect()
    }
}

/// Declares an enum whose values are words.
macro_rules! words {
    ($(#[$meta:meta])* pub enum $name:ident ($what:literal) { $($(#[$vmeta:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$vmeta])* $variant),+ }

        impl $crate::config::value::Value for $name {
            const WHAT: &'static str = $what;
            const PLACEHOLDER: &'static str = concat_words!($($word),+);

            fn parse(text: &str) -> Option<Self> {
                match text { $($word => Some(Self::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $(Self::$variant => $word),+ })
            }
        }
    };
}

/// `a|b|c`.
macro_rules! concat_words {
    ($first:literal $(, $rest:literal)*) => { concat!($first $(, "|", $rest)*) };
}

words! {
    /// How KV moves between processes.
    pub enum Transport ("auto, tcp, shm or rdma") {
        /// Shared memory on one machine, otherwise RDMA where there are NICs, otherwise TCP.
        Auto = "auto",
        /// TCP only.
        Tcp = "tcp",
        /// Shared memory only.
        Shm = "shm",
        /// RDMA only.
        Rdma = "rdma",
    }
}

words! {
    /// Numbers in the KV cache.
    pub enum KvDtype ("f16 or f32") {
        /// 16 bits.
        F16 = "f16",
        /// 32 bits.
        F32 = "f32",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_read_what_they_say() {
        assert_eq!(Duration::parse("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(Duration::parse("2 s"), Some(Duration::from_secs(2)));
        assert_eq!(Duration::parse("2h"), Some(Duration::from_secs(7200)));
        for wrong in ["", "5", "s", "-1s", "1.5s", "9999999999999999999s", "99999999999999999h"] {
            assert_eq!(Duration::parse(wrong), None, "{wrong}");
        }
        assert_eq!(ByteSize::parse("2 GiB"), Some(ByteSize(2 << 30)));
        for wrong in ["", "5", "5MB", "-1B", "99999999TiB"] {
            assert_eq!(ByteSize::parse(wrong), None, "{wrong}");
        }
        assert_eq!(HostPort::parse("[::1]:80").map(|h| h.0), Some("[::1]:80".into()));
        for wrong in ["", ":80", "host", "host:0", "host:99999", "http://host:80", "a b:80"] {
            assert_eq!(HostPort::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Vec::<u32>::parse("1, 2,3"), Some(vec![1, 2, 3]));
        assert_eq!(Vec::<u32>::parse(""), Some(vec![]));
        assert_eq!(Vec::<u32>::parse("1,,2"), None);
        assert_eq!(Option::<u32>::parse(""), Some(None));
        assert_eq!(f64::parse("NaN"), None);
        assert_eq!(Transport::parse("shm"), Some(Transport::Shm));
        assert_eq!(Transport::PLACEHOLDER, "auto|tcp|shm|rdma");
    }

    #[test]
    fn secrets_do_not_print() {
        let secret = Secret::parse("sk-0123456789").unwrap();
        assert!(!format!("{secret:?}").contains("0123"));
        assert!(Secret::parse("k").is_some() && Secret::parse("").is_none() && Secret::parse("a b").is_none());
    }
}
