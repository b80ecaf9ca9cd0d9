//! KV events to and from the wire.

use kvrail_kv::{ChainHash, KvEvent, Tier};

use crate::v1;

/// A message that does not say what it must.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed(
    /// Name of the field that is missing or wrong.
    pub &'static str,
);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "malformed message: field `{}` is missing or out of range", self.0)
    }
}

impl std::error::Error for Malformed {}

fn tier_to_wire(tier: Tier) -> u32 {
    match tier {
        Tier::Device => 0,
        Tier::Host => 1,
    }
}

fn tier_from_wire(tier: u32) -> Result<Tier, Malformed> {
    match tier {
        0 => Ok(Tier::Device),
        1 => Ok(Tier::Host),
        _ => Err(Malformed("tier")),
    }
}

fn hashes_from_wire(blocks: Vec<u64>) -> Vec<ChainHash> {
    blocks.into_iter().map(ChainHash).collect()
}

impl From<&KvEvent> for v1::KvEvent {
    fn from(event: &KvEvent) -> Self {
        let raw = |blocks: &[ChainHash]| blocks.iter().map(|b| b.0).collect();
        let event = match event {
            KvEvent::Stored { parent, blocks, tier } => v1::kv_event::Event::Stored(v1::KvStored {
                parent: parent.map(|p| p.0),
                blocks: raw(blocks),
                tier: tier_to_wire(*tier),
            }),
            KvEvent::Removed { blocks, tier } => {
                v1::kv_event::Event::Removed(v1::KvRemoved { blocks: raw(blocks), tier: tier_to_wire(*tier) })
            }
            KvEvent::Cleared => v1::kv_event::Event::Cleared(v1::KvCleared {}),
        };
        Self { event: Some(event) }
    }
}

impl TryFrom<v1::KvStored> for KvEvent {
    type Error = Malformed;
    fn try_from(stored: v1::KvStored) -> Result<Self, Malformed> {
        Ok(Self::Stored {
            parent: stored.parent.map(ChainHash),
            blocks: hashes_from_wire(stored.blocks),
            tier: tier_from_wire(stored.tier)?,
        })
    }
}

impl TryFrom<v1::KvEvent> for KvEvent {
    type Error = Malformed;
    fn try_from(event: v1::KvEvent) -> Result<Self, Malformed> {
        match event.event.ok_or(Malformed("event"))? {
            v1::kv_event::Event::Stored(stored) => stored.try_into(),
            v1::kv_event::Event::Removed(removed) => {
                Ok(Self::Removed { blocks: hashes_from_wire(removed.blocks), tier: tier_from_wire(removed.tier)? })
            }
            v1::kv_event::Event::Cleared(_) => Ok(Self::Cleared),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_the_wire() {
        let events = [
            KvEvent::Stored { parent: None, blocks: vec![ChainHash(1), ChainHash(u64::MAX)], tier: Tier::Device },
            KvEvent::Stored { parent: Some(ChainHash(7)), blocks: vec![], tier: Tier::Host },
            KvEvent::Removed { blocks: vec![ChainHash(3)], tier: Tier::Device },
            KvEvent::Cleared,
        ];
        for event in events {
            assert_eq!(KvEvent::try_from(v1::KvEvent::from(&event)), Ok(event));
        }
    }

    #[test]
    fn what_is_malformed_names_its_field() {
        assert_eq!(KvEvent::try_from(v1::KvEvent { event: None }), Err(Malformed("event")));
        let removed = v1::KvRemoved { blocks: vec![], tier: 9 };
        let event = v1::KvEvent { event: Some(v1::kv_event::Event::Removed(removed)) };
        assert_eq!(KvEvent::try_from(event), Err(Malformed("tier")));
    }
}
