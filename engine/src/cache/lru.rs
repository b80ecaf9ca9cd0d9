//! An intrusive doubly linked list over block ids: push at the young end, unlink anywhere, pop at the old end, all O(1).

use crate::memory::BlockId;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    older: u32,
    younger: u32,
}

/// Blocks from the longest unreferenced to the latest. A block is in it at most once; the caller keeps that.
#[derive(Debug)]
pub(super) struct Lru {
    links: Vec<Link>,
    oldest: u32,
    youngest: u32,
}

impl Lru {
    pub(super) fn new(blocks: u32) -> Self {
        Self { links: vec![Link { older: NONE, younger: NONE }; blocks as usize], oldest: NONE, youngest: NONE }
    }

    /// Appends a block that is not in the list.
    pub(super) fn push(&mut self, block: BlockId) {
        self.links[block.0 as usize] = Link { older: self.youngest, younger: NONE };
        match self.youngest {
            NONE => self.oldest = block.0,
            before => self.links[before as usize].younger = block.0,
        }
        self.youngest = block.0;
    }

    /// Takes a block out that is in the list.
    pub(super) fn unlink(&mut self, block: BlockId) {
        let Link { older, younger } = self.links[block.0 as usize];
        match older {
            NONE => self.oldest = younger,
            at => self.links[at as usize].younger = younger,
        }
        match younger {
            NONE => self.youngest = older,
            at => self.links[at as usize].older = older,
        }
    }

    /// Takes the oldest out.
    pub(super) fn pop(&mut self) -> Option<BlockId> {
        (self.oldest != NONE).then(|| {
            let block = BlockId(self.oldest);
            self.unlink(block);
            block
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pops_in_the_order_of_pushes_and_forgets_what_is_unlinked() {
        let mut lru = Lru::new(6);
        for block in [3, 1, 4, 0, 5] {
            lru.push(BlockId(block));
        }
        for block in [4, 3, 5] {
            lru.unlink(BlockId(block));
        }
        lru.push(BlockId(3));
        let popped: Vec<u32> = std::iter::from_fn(|| lru.pop()).map(|b| b.0).collect();
        assert_eq!(popped, [1, 0, 3]);
        lru.push(BlockId(2));
        assert_eq!(lru.pop(), Some(BlockId(2)));
        assert_eq!(lru.pop(), None);
    }
}
