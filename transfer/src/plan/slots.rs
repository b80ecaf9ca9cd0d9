//! A table whose keys carry a generation: a key outlives its entry and then finds nothing, never its successor.

use std::marker::PhantomData;

/// A key of [`Slots`].
pub(crate) trait Key: Copy {
    fn new(slot: u32, generation: u32) -> Self;
    fn slot(self) -> u32;
    fn generation(self) -> u32;
}

/// Slot table: O(1) insert, find and remove, dense positions, memory of its high-water mark.
#[derive(Debug)]
pub(crate) struct Slots<K, V> {
    entries: Vec<Entry<V>>,
    free: Vec<u32>,
    key: PhantomData<K>,
}

#[derive(Debug)]
struct Entry<V> {
    generation: u32,
    value: Option<V>,
}

impl<K: Key, V> Slots<K, V> {
    pub(crate) fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new(), key: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, value: V) -> K {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.entries.push(Entry { generation: 0, value: None });
                (self.entries.len() - 1) as u32
            }
        };
        let entry = &mut self.entries[slot as usize];
        entry.value = Some(value);
        K::new(slot, entry.generation)
    }

    pub(crate) fn get(&self, key: K) -> Option<&V> {
        let entry = self.entries.get(key.slot() as usize)?;
        if entry.generation == key.generation() { entry.value.as_ref() } else { None }
    }

    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut V> {
        let entry = self.entries.get_mut(key.slot() as usize)?;
        if entry.generation == key.generation() { entry.value.as_mut() } else { None }
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<V> {
        let entry = self.entries.get_mut(key.slot() as usize)?;
        if entry.generation != key.generation() {
            return None;
        }
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(key.slot());
        Some(value)
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = K> {
        let live = self.entries.iter().enumerate().filter(|(_, entry)| entry.value.is_some());
        live.map(|(slot, entry)| K::new(slot as u32, entry.generation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::SliceId;

    #[test]
    fn a_key_of_a_former_tenant_finds_nothing() {
        let mut slots: Slots<SliceId, &str> = Slots::new();
        let a = slots.insert("a");
        let b = slots.insert("b");
        assert_eq!(slots.remove(a), Some("a"));
        assert_eq!(slots.remove(a), None);
        let c = slots.insert("c");
        assert_eq!(c.index(), a.index());
        assert_ne!(c, a);
        assert_eq!(slots.get(a), None);
        assert_eq!(slots.get_mut(c), Some(&mut "c"));
        assert_eq!(slots.keys().collect::<Vec<_>>(), [c, b]);
        assert_eq!(slots.len(), 2);
        assert_eq!(SliceId::from_bits(c.to_bits()), c);
    }
}
