//! Whose NIC is which: GPUs that are equally near to the same NICs divide them evenly.
//!
//! Greedy, in order of distance: who has a NIC behind its own switch takes it first; GPUs without one of their own come after and
//! take those that carry least. O(GPUs × NICs × log NICs).

use super::distance::Reach;

/// What one GPU's traffic adds to the NICs of its share; divides by every count up to ten.
const LOAD: u64 = 2520;

/// For each GPU, the NICs (by index, ascending) that are its own share. `reach[gpu][nic]` is the distance; `used[nic]` says
/// which NICs count. No share is empty while a NIC counts.
pub(super) fn shares(reach: &[Vec<Reach>], used: &[bool]) -> Vec<Vec<usize>> {
    let mut groups: Vec<(Reach, Vec<usize>, Vec<usize>)> = Vec::new();
    for (gpu, reach) in reach.iter().enumerate() {
        let counted = || reach.iter().zip(used).enumerate().filter(|(_, (_, used))| **used);
        let Some(nearest) = counted().map(|(_, (reach, _))| *reach).min() else { continue };
        let nics: Vec<usize> = counted().filter(|(_, (reach, _))| **reach == nearest).map(|(nic, _)| nic).collect();
        match groups.iter_mut().find(|(reach, _, others)| *reach == nearest && *others == nics) {
            Some((_, gpus, _)) => gpus.push(gpu),
            None => groups.push((nearest, vec![gpu], nics)),
        }
    }
    // Stable: by the first GPU where the distance is the same.
    groups.sort_by_key(|(reach, _, _)| *reach);
    let mut load = vec![0u64; used.len()];
    let mut shares = vec![Vec::new(); reach.len()];
    for (_, gpus, nics) in &groups {
        for (gpu, share) in gpus.iter().zip(divide(gpus.len(), nics, &load)) {
            for nic in &share {
                load[*nic] += LOAD / share.len() as u64;
            }
            shares[*gpu] = share;
        }
    }
    shares
}

/// Divides `nics` among a number of GPUs, in order, so that neighbours get neighbours.
fn divide(gpus: usize, nics: &[usize], load: &[u64]) -> Vec<Vec<usize>> {
    let mut by_load = nics.to_vec();
    by_load.sort_by_key(|nic| (load[*nic], *nic));
    let each = nics.len() / gpus;
    if each > 0 {
        // Each has as many as go round; what is left over carries for all of them.
        let (own, common) = by_load.split_at(each * gpus);
        let mut own = own.to_vec();
        own.sort_unstable();
        return own
            .chunks(each)
            .map(|mine| {
                let mut share = [mine, common].concat();
                share.sort_unstable();
                share
            })
            .collect();
    }
    // More GPUs than NICs: each takes the one that carries least.
    let mut load: Vec<u64> = nics.iter().map(|nic| load[*nic]).collect();
    let mut quota = vec![0; nics.len()];
    for _ in 0..gpus {
        let least = (0..nics.len()).min_by_key(|at| (load[*at], *at)).unwrap_or(0);
        load[least] += LOAD;
        quota[least] += 1;
    }
    let each = nics.iter().zip(quota).flat_map(|(nic, quota)| std::iter::repeat_n(vec![*nic], quota));
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::super::types::Distance::{self, *};
    use super::*;

    fn shares_of<const NICS: usize>(rows: &[[Distance; NICS]]) -> Vec<Vec<usize>> {
        let reach: Vec<Vec<Reach>> =
            rows.iter().map(|row| row.iter().map(|distance| (*distance, 0)).collect()).collect();
        shares(&reach, &[true; NICS])
    }

    #[test]
    fn equally_near_nics_are_divided_in_order() {
        assert_eq!(shares_of(&[[SameRoot; 4]; 2]), [[0, 1], [2, 3]]);
        assert_eq!(shares_of(&[[SameRoot; 2]; 4]), [[0], [0], [1], [1]]);
        assert_eq!(shares_of(&[[SameRoot; 5]; 2]), [[0, 1, 4], [2, 3, 4]], "the odd one carries for both");
        assert_eq!(shares_of(&[[SameRoot; 2]; 3]), [[0], [0], [1]]);
        assert_eq!(shares_of(&[[Unknown; 1]; 3]), [[0], [0], [0]]);
    }

    #[test]
    fn who_has_no_nic_of_its_own_takes_what_carries_least() {
        let rows = [[SameSwitch, SameNuma], [SameNuma; 2], [SameNuma; 2], [SameNuma; 2]];
        let shares = shares_of(&rows);
        let on_first = shares.iter().filter(|share| **share == [0]).count();
        assert_eq!((shares[0].as_slice(), on_first), ([0].as_slice(), 2), "{shares:?}");
    }

    #[test]
    fn nothing_is_shared_where_nothing_counts() {
        assert_eq!(shares(&[vec![(SameNuma, 0)]], &[false]), [[0usize; 0]]);
        assert!(shares(&[], &[]).is_empty());
    }
}
