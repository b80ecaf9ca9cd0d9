//! Who moves bytes to or from whom: the flows of a pattern over the members of a bench.
//!
//! Member 0 is the process that the command was given to, the others are its peers, in the order of the command line.

use serde::{Deserialize, Serialize};

/// A pattern.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Members in pairs, each pair by itself
    #[default]
    Pairwise,
    /// Every peer to this process: incast
    ManyToOne,
    /// This process to every peer
    OneToMany,
    /// Everybody to everybody else
    AllToAll,
}

/// One member's transfers to one other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// The member whose memory the bytes come from.
    pub from: usize,
    /// The member whose memory they go to.
    pub to: usize,
}

/// A pattern that does not go with so many members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Somebody is left over.
    #[error(
        "pairs want an even number of members, this process among them: {peers} peers leave one over; give one more or less"
    )]
    Odd {
        /// Peers.
        peers: usize,
    },
    /// Nothing to do.
    #[error("a peer at least is wanted")]
    Alone,
}

impl Pattern {
    /// Its flows over this process and so many peers.
    ///
    /// # Errors
    /// [`PatternError`] when it does not go with so many.
    pub fn flows(self, peers: usize) -> Result<Vec<Flow>, PatternError> {
        let members = peers + 1;
        if peers == 0 {
            return Err(PatternError::Alone);
        }
        let flow = |from, to| Flow { from, to };
        Ok(match self {
            Self::Pairwise if !members.is_multiple_of(2) => return Err(PatternError::Odd { peers }),
            Self::Pairwise => (0..members).step_by(2).map(|first| flow(first, first + 1)).collect(),
            Self::ManyToOne => (1..members).map(|peer| flow(peer, 0)).collect(),
            Self::OneToMany => (1..members).map(|peer| flow(0, peer)).collect(),
            // Each in another order, so that not all begin with the same one.
            Self::AllToAll => (0..members)
                .flat_map(|from| (1..members).map(move |step| flow(from, (from + step) % members)))
                .collect(),
        })
    }
}

/// How many times over the rails of one member can carry the flows at best: the fewer of those who send and those who
/// receive.
#[must_use]
pub fn lines(flows: &[Flow]) -> usize {
    let distinct = |side: fn(&Flow) -> usize| flows.iter().map(side).collect::<std::collections::BTreeSet<_>>().len();
    distinct(|flow| flow.from).min(distinct(|flow| flow.to))
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Pairwise => "pairwise",
            Self::ManyToOne => "many-to-one",
            Self::OneToMany => "one-to-many",
            Self::AllToAll => "all-to-all",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pattern: Pattern, peers: usize) -> Vec<(usize, usize)> {
        pattern.flows(peers).unwrap().iter().map(|flow| (flow.from, flow.to)).collect()
    }

    #[test]
    fn each_pattern_has_its_flows() {
        assert_eq!(pairs(Pattern::Pairwise, 1), [(0, 1)]);
        assert_eq!(pairs(Pattern::Pairwise, 3), [(0, 1), (2, 3)]);
        assert_eq!(pairs(Pattern::ManyToOne, 3), [(1, 0), (2, 0), (3, 0)]);
        assert_eq!(pairs(Pattern::OneToMany, 2), [(0, 1), (0, 2)]);
        assert_eq!(pairs(Pattern::AllToAll, 2), [(0, 1), (0, 2), (1, 2), (1, 0), (2, 0), (2, 1)]);
    }

    #[test]
    fn all_to_all_is_every_ordered_pair_once_and_nobody_to_himself() {
        for peers in 1..6 {
            let mut all = pairs(Pattern::AllToAll, peers);
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), (peers + 1) * peers);
            assert!(all.iter().all(|(from, to)| from != to));
        }
    }

    #[test]
    fn what_does_not_go_is_refused() {
        assert_eq!(Pattern::Pairwise.flows(2), Err(PatternError::Odd { peers: 2 }));
        assert_eq!(Pattern::AllToAll.flows(0), Err(PatternError::Alone));
    }

    #[test]
    fn the_line_counts_once_where_one_member_is_the_narrow_place() {
        let lines = |pattern: Pattern, peers| super::lines(&pattern.flows(peers).unwrap());
        assert_eq!(lines(Pattern::ManyToOne, 7), 1);
        assert_eq!(lines(Pattern::OneToMany, 7), 1);
        assert_eq!(lines(Pattern::Pairwise, 7), 4);
        assert_eq!(lines(Pattern::AllToAll, 7), 8);
    }
}
