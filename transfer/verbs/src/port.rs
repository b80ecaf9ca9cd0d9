//! Ports: state, and how fast.

use kvrail_verbs_sys as sys;

/// State of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortState {
    /// No link.
    Down,
    /// Link, not configured.
    Init,
    /// Configured, not yet in use.
    Armed,
    /// In use.
    Active,
    /// In use; the link is being recovered.
    ActiveDefer,
    /// A value that is newer than this code, or none.
    Other(u32),
}

/// What a port is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand: addressed by LID.
    InfiniBand,
    /// Ethernet (RoCE, iWARP): addressed by GID.
    Ethernet,
    /// The driver does not tell; InfiniBand, by the convention of verbs.h.
    Unspecified,
}

/// Bytes of payload in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Mtu {
    /// All, smallest first.
    pub const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// In bytes.
    pub fn bytes(self) -> u32 {
        128 << self as u32
    }

    fn of(raw: sys::ibv_mtu) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| *mtu as u32 == raw.0)
    }

    pub(crate) fn raw(self) -> sys::ibv_mtu {
        sys::ibv_mtu(self as u32)
    }
}

/// Attributes of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortAttributes {
    /// Its state.
    pub state: PortState,
    /// What it is connected to.
    pub link_layer: LinkLayer,
    /// Largest MTU that it can do; `None` where the driver tells none.
    pub mtu_max: Option<Mtu>,
    /// MTU of the link; `None` where the driver tells none.
    pub mtu_active: Option<Mtu>,
    /// Local identifier, on InfiniBand.
    pub lid: u16,
    /// Places in its GID table.
    pub gids_max: u32,
    /// Bytes of a message, at most.
    pub message_bytes_max: u32,
    /// Lanes of the link; 0 where the driver tells none.
    pub lanes: u32,
    /// Bit/s of a lane; 0 where the driver tells none.
    pub lane_bits_per_second: u64,
    /// Bit/s of the link as driver and library together tell it, where they do (rdma-core 62 and newer).
    pub effective_bits_per_second: Option<u64>,
}

impl PortAttributes {
    /// Nominal speed of the link in bit/s; 0 where the driver tells none. Software devices make it up.
    pub fn bits_per_second(&self) -> u64 {
        self.effective_bits_per_second.unwrap_or(u64::from(self.lanes) * self.lane_bits_per_second)
    }

    pub(crate) fn of(raw: &sys::ibv_port_attr, effective_bits_per_second: Option<u64>) -> Self {
        // The wider field holds what the older one, of a byte, cannot; it is 0 where the library is older than it.
        let speed = if raw.active_speed_ex != 0 { raw.active_speed_ex } else { raw.active_speed.into() };
        Self {
            state: state(raw.state),
            link_layer: match raw.link_layer {
                1 => LinkLayer::InfiniBand,
                2 => LinkLayer::Ethernet,
                _ => LinkLayer::Unspecified,
            },
            mtu_max: Mtu::of(raw.max_mtu),
            mtu_active: Mtu::of(raw.active_mtu),
            lid: raw.lid,
            gids_max: u32::try_from(raw.gid_tbl_len).unwrap_or(0),
            message_bytes_max: raw.max_msg_sz,
            lanes: find(LANES, raw.active_width.into()),
            lane_bits_per_second: find(LANE_SPEEDS, speed),
            effective_bits_per_second,
        }
    }
}

fn state(raw: sys::ibv_port_state) -> PortState {
    match raw {
        sys::ibv_port_state::IBV_PORT_DOWN => PortState::Down,
        sys::ibv_port_state::IBV_PORT_INIT => PortState::Init,
        sys::ibv_port_state::IBV_PORT_ARMED => PortState::Armed,
        sys::ibv_port_state::IBV_PORT_ACTIVE => PortState::Active,
        sys::ibv_port_state::IBV_PORT_ACTIVE_DEFER => PortState::ActiveDefer,
        other => PortState::Other(other.0),
    }
}

/// Lanes by `active_width` (IBTA 14.2.5.6, LinkWidthActive).
const LANES: &[(u32, u32)] = &[(1, 1), (2, 4), (4, 8), (8, 12), (16, 2)];

/// Bit/s of a lane by `active_speed` (IBTA 14.2.5.6, LinkSpeedActive and its extensions), as links are named and as the
/// kernel maps Ethernet's speeds onto them.
const LANE_SPEEDS: &[(u32, u64)] = &[
    (1, 2_500_000_000),     // SDR
    (2, 5_000_000_000),     // DDR
    (4, 10_000_000_000),    // QDR
    (8, 10_000_000_000),    // FDR10
    (16, 14_000_000_000),   // FDR
    (32, 25_000_000_000),   // EDR
    (64, 50_000_000_000),   // HDR
    (128, 100_000_000_000), // NDR
    (256, 200_000_000_000), // XDR
];

fn find<T: Copy + Default>(table: &[(u32, T)], code: u32) -> T {
    table.iter().find(|(known, _)| *known == code).map(|(_, value)| *value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(width: u8, speed: u8, speed_ex: u32) -> PortAttributes {
        // SAFETY: all zeroes is a value of it.
        let mut raw: sys::ibv_port_attr = unsafe { std::mem::zeroed() };
        (raw.active_width, raw.active_speed, raw.active_speed_ex) = (width, speed, speed_ex);
        PortAttributes::of(&raw, None)
    }

    #[test]
    fn speed_is_lanes_by_lane() {
        let gigabits = |width, speed, speed_ex| port(width, speed, speed_ex).bits_per_second() / 1_000_000_000;
        assert_eq!(gigabits(2, 32, 0), 100, "4 lanes EDR");
        assert_eq!(gigabits(2, 64, 0), 200, "4 lanes HDR");
        assert_eq!(gigabits(2, 128, 0), 400, "4 lanes NDR");
        assert_eq!(gigabits(16, 128, 0), 200, "2 lanes NDR");
        assert_eq!(gigabits(4, 128, 0), 800, "8 lanes NDR");
        assert_eq!(gigabits(1, 1, 0), 2, "1 lane SDR");
    }

    #[test]
    fn a_speed_that_does_not_fit_a_byte_comes_from_the_wider_field() {
        assert_eq!(port(2, 128, 256).bits_per_second(), 800_000_000_000, "4 lanes XDR, which the byte calls NDR");
        assert_eq!(port(2, 0, 256).bits_per_second(), 800_000_000_000);
    }

    #[test]
    fn what_is_not_known_is_no_speed() {
        assert_eq!(port(0, 32, 0).bits_per_second(), 0);
        assert_eq!(port(2, 3, 0).bits_per_second(), 0);
        let mut told = port(2, 32, 0);
        told.effective_bits_per_second = Some(90);
        assert_eq!(told.bits_per_second(), 90, "the driver's own word goes first");
    }

    #[test]
    fn mtu_in_bytes() {
        assert_eq!(Mtu::ALL.map(Mtu::bytes), [256, 512, 1024, 2048, 4096]);
        assert_eq!(Mtu::of(sys::ibv_mtu::IBV_MTU_4096), Some(Mtu::B4096));
        assert_eq!(Mtu::of(sys::ibv_mtu(0)), None);
    }
}
