// Processes four tokens at a time.
alias Sums = vec4<f32>;
const TOKENS: u32 = 4u;
fn pick(sums: Sums, i: u32) -> f32 { return sums[i]; }
