//! The nearest known word to one that is not known.

/// Longer words are not compared: the work is the product of both lengths.
const MAX_COMPARED: usize = 40;

/// The word of `known` that `word` was most likely meant to be, if one is near.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > MAX_COMPARED {
        return None;
    }
    let word = word.to_ascii_lowercase().replace('-', "_");
    // One slip in a short word, two or three in a longer one.
    let allowed = 1 + word.len() / 4;
    known
        .into_iter()
        .map(|candidate| (distance(&word, candidate), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// How many letters must be inserted, removed, replaced or swapped with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before_last[j - 2] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_slips_find_their_word() {
        let known = ["listen", "open_timeout", "inspect", "mode", "group"];
        for (word, want) in [
            ("lisen", Some("listen")),
            ("litsen", Some("listen")),
            ("Listen", Some("listen")),
            ("open-timeout", Some("open_timeout")),
            ("opentimeout", Some("open_timeout")),
            ("modes", Some("mode")),
            ("timeout", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known), want, "{word:?}");
        }
        assert_eq!(nearest(&"listen".repeat(100), known), None);
    }
}
