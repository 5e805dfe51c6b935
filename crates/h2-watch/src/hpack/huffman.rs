//! The Huffman code of HPACK (RFC 7541, appendix B), four bits at a time.

/// Bits of each symbol's code; the last is the end-of-string symbol. The code is canonical: among codes in the order
/// of length and symbol, each is the one before plus one. So the lengths say everything.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28,
    28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15,
    6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22,
    20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23,
    23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22,
    22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26,
    27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27,
    26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

const END_OF_STRING: u16 = 256;
const LEAF: u16 = 0x8000;
/// In a [`Step`]: no code goes this way, or it is the end-of-string symbol, which a string may not contain.
const FAULT: u16 = 0x8000;
/// In a [`Step`]: a symbol is complete.
const EMITS: u16 = 0x4000;

/// What four bits do in a state: the next state in the low byte, and flags.
#[derive(Clone, Copy)]
struct Step {
    next: u16,
    symbol: u8,
}

/// A state for each inner node of the code's tree: a tree of 257 leaves has 256.
struct Machine {
    steps: [[Step; 16]; 256],
    /// Whether a string may end here: fewer than eight bits since the last symbol, all ones.
    ends: [bool; 256],
}

static MACHINE: Machine = build();

/// Children of each inner node: another node, or `LEAF` and a symbol.
const fn tree() -> [[u16; 2]; 256] {
    let mut nodes = [[0_u16; 2]; 256];
    let (mut used, mut code, mut length) = (1_u16, 0_u32, 5_u8);
    while length <= 30 {
        let mut symbol = 0;
        while symbol <= END_OF_STRING {
            if LENGTHS[symbol as usize] == length {
                let (mut node, mut bit) = (0_usize, length);
                while bit > 1 {
                    bit -= 1;
                    let way = ((code >> bit) & 1) as usize;
                    if nodes[node][way] == 0 {
                        nodes[node][way] = used;
                        used += 1;
                    }
                    node = nodes[node][way] as usize;
                }
                nodes[node][(code & 1) as usize] = LEAF | symbol;
                code += 1;
            }
            symbol += 1;
        }
        code <<= 1;
        length += 1;
    }
    nodes
}

const fn build() -> Machine {
    let nodes = tree();
    let mut steps = [[Step { next: 0, symbol: 0 }; 16]; 256];
    let mut state = 0;
    while state < 256 {
        let mut bits = 0;
        while bits < 16 {
            steps[state][bits] = walk(&nodes, state, bits);
            bits += 1;
        }
        state += 1;
    }
    let mut ends = [false; 256];
    let (mut node, mut ones) = (0_usize, 0);
    while ones < 8 {
        ends[node] = true;
        if nodes[node][1] & LEAF != 0 {
            break;
        }
        node = nodes[node][1] as usize;
        ones += 1;
    }
    Machine { steps, ends }
}

/// At most one symbol ends within four bits: the shortest code has five.
const fn walk(nodes: &[[u16; 2]; 256], state: usize, bits: usize) -> Step {
    let (mut node, mut flags, mut symbol, mut bit) = (state, 0, 0, 4);
    while bit > 0 {
        bit -= 1;
        let next = nodes[node][(bits >> bit) & 1];
        if next == LEAF | END_OF_STRING {
            return Step { next: FAULT, symbol: 0 };
        }
        if next & LEAF == 0 {
            node = next as usize;
        } else {
            symbol = (next & 0xff) as u8;
            flags = EMITS;
            node = 0;
        }
    }
    Step { next: flags | node as u16, symbol }
}

/// Decodes a string, each byte to `emit`, and tells how many there were. None: it is not of this code, or does not
/// end as it must.
pub(super) fn decode(bytes: &[u8], mut emit: impl FnMut(u8)) -> Option<usize> {
    let (mut state, mut count) = (0_usize, 0);
    for byte in bytes {
        for bits in [byte >> 4, byte & 0xf] {
            let step = MACHINE.steps[state][usize::from(bits)];
            if step.next & FAULT != 0 {
                return None;
            }
            if step.next & EMITS != 0 {
                emit(step.symbol);
                count += 1;
            }
            state = usize::from(step.next & 0xff);
        }
    }
    MACHINE.ends[state].then_some(count)
}

#[cfg(test)]
mod tests {
    use super::decode;

    fn text(bytes: &[u8]) -> Option<String> {
        let mut out = Vec::new();
        let count = decode(bytes, |byte| out.push(byte))?;
        assert_eq!(count, out.len());
        String::from_utf8(out).ok()
    }

    /// RFC 7541, C.4 and C.6.
    #[test]
    fn the_examples_of_the_rfc() {
        let cases: [(&[u8], &str); 4] = [
            (&[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff], "www.example.com"),
            (&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf], "no-cache"),
            (&[0x64, 0x02], "302"),
            (&[0xae, 0xc3, 0x77, 0x1a, 0x4b], "private"),
        ];
        for (bytes, expected) in cases {
            assert_eq!(text(bytes).as_deref(), Some(expected));
        }
        assert_eq!(text(&[]).as_deref(), Some(""));
    }

    #[test]
    fn padding_is_at_most_seven_ones() {
        // '0' is 00000; then 111.
        assert_eq!(text(&[0b0000_0111]).as_deref(), Some("0"));
        assert_eq!(text(&[0b0000_0110]), None, "padding that is not all ones");
        assert_eq!(text(&[0b0000_0111, 0xff]), None, "eleven ones");
        assert_eq!(text(&[0xff]), None, "eight ones");
        assert_eq!(text(&[0xff, 0xff, 0xff, 0xff]), None, "the end-of-string symbol");
    }
}
