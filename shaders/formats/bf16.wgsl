const {{self}}_PER_WORD: u32 = 2u;
fn {{self}}_values(word: u32) -> vec2<f32> { return vec2<f32>(bitcast<f32>(word << 16u), bitcast<f32>(word & 0xffff0000u)); }
