// Processes one token at a time.
alias Sums = f32;
const TOKENS: u32 = 1u;
fn pick(sums: Sums, i: u32) -> f32 { return sums; }
