const {{self}}_HEAD: u32 = 1u;
const {{self}}_HAS_MIN: bool = false;
const {{self}}_FIVE_BITS: bool = false;

// The code of a nibble: `IQ4_CODES` of `hal`.
fn {{self}}_entry(nibble: u32) -> f32 {
    let word = vec4<u32>(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u)[nibble / 4u];
    return f32(i32(word << (24u - 8u * (nibble % 4u))) >> 24u);
}
