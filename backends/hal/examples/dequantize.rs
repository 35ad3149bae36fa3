//! Dequantises blocks for `scripts/check_formats`: reads the name of a format, a newline and whole
//! blocks, and writes the values as little-endian F32.

use std::error::Error;
use std::io::{BufRead, Read, Write, stdin, stdout};

use thermocline_hal::format::Format;

fn main() -> Result<(), Box<dyn Error>> {
    let mut input = stdin().lock();
    let (mut name, mut blocks) = (String::new(), Vec::new());
    input.read_line(&mut name)?;
    input.read_to_end(&mut blocks)?;
    let format: Format = name.trim().parse()?;
    let mut values = vec![0.0; blocks.len() / format.block_bytes() * format.block_values()];
    format.dequantize(&blocks, &mut values);
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    Ok(stdout().write_all(&bytes)?)
}
