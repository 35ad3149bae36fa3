const {{self}}_PER_WORD: u32 = 2u;
fn {{self}}_values(word: u32) -> vec2<f32> { return unpack2x16float(word); }
