//! PCI addresses.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// `domain:bus:device.function`, in hexadecimal. Some machines' domains have more than four digits (VMD), so they are 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PciAddress {
    /// Domain (segment).
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device, below 32.
    pub device: u8,
    /// Function, below 8.
    pub function: u8,
}

/// This is no PCI address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an address like 0000:3b:00.0 would be right")]
pub struct NotAnAddress;

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl FromStr for PciAddress {
    type Err = NotAnAddress;

    /// Also takes addresses without a domain, as `lspci` shows them where there is one domain.
    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        let hex = |digits: &str, most: usize| match digits.len() {
            len if (1..=most).contains(&len) && digits.bytes().all(|b| b.is_ascii_hexdigit()) => {
                u32::from_str_radix(digits, 16).map_err(|_| NotAnAddress)
            }
            _ => Err(NotAnAddress),
        };
        let (before, function) = text.rsplit_once('.').ok_or(NotAnAddress)?;
        let (before, device) = before.rsplit_once(':').ok_or(NotAnAddress)?;
        let (domain, bus) = before.rsplit_once(':').unwrap_or(("0", before));
        let (device, function) = (hex(device, 2)?, hex(function, 1)?);
        if device > 0x1f || function > 7 {
            return Err(NotAnAddress);
        }
        let narrow = |value: u32| u8::try_from(value).map_err(|_| NotAnAddress);
        Ok(Self {
            domain: hex(domain, 8)?,
            bus: narrow(hex(bus, 2)?)?,
            device: narrow(device)?,
            function: narrow(function)?,
        })
    }
}

impl TryFrom<String> for PciAddress {
    type Error = NotAnAddress;

    fn try_from(text: String) -> Result<Self, NotAnAddress> {
        text.parse()
    }
}

impl From<PciAddress> for String {
    fn from(address: PciAddress) -> Self {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_back_and_sort_as_the_bus_does() {
        for text in ["0000:3b:00.0", "ffff:ff:1f.7", "10000:01:00.1"] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), text);
        }
        assert_eq!("3B:00.0".parse::<PciAddress>().unwrap().to_string(), "0000:3b:00.0");
        assert!("0000:09:00.0".parse::<PciAddress>().unwrap() < "0000:0a:00.0".parse().unwrap());
        for wrong in ["", "zz", "0000:3b:00", "0000:3b:20.0", "0000:3b:00.8", "0:100:00.0", "+1:00:00.0", "a:b:c:d.0"] {
            assert_eq!(wrong.parse::<PciAddress>(), Err(NotAnAddress), "{wrong}");
        }
    }
}
