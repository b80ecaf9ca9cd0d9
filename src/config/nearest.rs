//! The nearest known name to a misspelt one.

/// ` ; did you mean …?` for the nearest of `known`, or nothing where none is near.
pub fn hint<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> String {
    nearest(name, known).map_or_else(String::new, |near| format!("; did you mean `{near}`?"))
}

/// The known name with the fewest edits from `name`, at most a third of its length (and 2 at least).
pub fn nearest<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let limit = (name.chars().count() / 3).max(2);
    known.map(|k| (distance(name, k), k)).filter(|(d, _)| *d <= limit).min().map(|(_, k)| k)
}

/// Edits between two names: insert, delete, replace, or swap two neighbours; `-` and `_` and case do not count.
fn distance(a: &str, b: &str) -> usize {
    let letters = |s: &str| s.chars().map(|c| if c == '_' { '-' } else { c.to_ascii_lowercase() }).collect::<Vec<_>>();
    let (a, b) = (letters(a), letters(b));
    // Three rows of the table are enough: a swap looks two rows back.
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut next = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replace = row[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            next[j] = replace.min(row[j] + 1).min(next[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                next[j] = next[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut row, next);
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        assert_eq!(distance("pool-blocks", "pool_blocks"), 0);
        assert_eq!(distance("pool-blokcs", "pool-blocks"), 1);
        assert_eq!(distance("abc", ""), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn far_names_are_no_hint() {
        let known = ["model", "pool-blocks", "transport"];
        assert_eq!(nearest("modle", known.into_iter()), Some("model"));
        assert_eq!(nearest("pool-block", known.into_iter()), Some("pool-blocks"));
        assert_eq!(nearest("zzzzzz", known.into_iter()), None);
        assert_eq!(hint("transprot", known.into_iter()), "; did you mean `transport`?");
    }
}
