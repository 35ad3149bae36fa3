const {{self}}_HEAD: u32 = 4u;
const {{self}}_HAS_MIN: bool = true;
const {{self}}_FIVE_BITS: bool = true;
const {{self}}_TOP: f32 = 31.0;
const {{self}}_ZERO: f32 = 0.0;

fn {{self}}_entry(code: u32) -> f32 {
    return f32(code) - {{self}}_ZERO;
}
