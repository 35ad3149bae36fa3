//! Text of PTX: statements and their operands.

/// A statement with the line it begins at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Statement<'a> {
    pub(crate) line: u32,
    pub(crate) text: &'a str,
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand<'a> {
    /// A register, a special register, a label or another symbol.
    Name(&'a str),
    /// An integer, or the bits of a float.
    Number(u64),
    /// `[name + offset]`.
    Address(&'a str, i64),
    /// `{a, b}`.
    Vector(Vec<Operand<'a>>),
    /// `a|b`.
    Pair(&'a str, &'a str),
}

/// An instruction: `@!%p1 opcode operands`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Instruction<'a> {
    /// The predicate, and whether it is negated.
    pub(crate) guard: Option<(&'a str, bool)>,
    pub(crate) opcode: &'a str,
    pub(crate) operands: Vec<Operand<'a>>,
}

/// Splits a text at `;`, `{`, `}` and labels. Each brace of a body, each label and each text before
/// a `;` is a statement; so is the rest of the line after a word that takes it whole.
pub(crate) fn statements(text: &str) -> Vec<Statement<'_>> {
    let mut found = Vec::new();
    // Where the open statement begins, and its line; it may go on over several lines.
    let mut open: Option<(usize, u32)> = None;
    // Braces inside of a statement: a vector or an initialiser.
    let mut depth = 0;
    let mut offset = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let number = number as u32 + 1;
        let code = line.split("//").next().unwrap_or("");
        for (at, byte) in code.bytes().enumerate() {
            let here = offset + at;
            let Some((start, first)) = open else {
                match byte {
                    b'{' | b'}' => found.push(Statement { line: number, text: &text[here..=here] }),
                    b';' => {}
                    _ if byte.is_ascii_whitespace() => {}
                    _ => open = Some((here, number)),
                }
                continue;
            };
            let statement = Statement { line: first, text: text[start..here].trim_end() };
            match byte {
                // The body of a kernel.
                b'{' if statement.text.starts_with(".visible") => {
                    found.push(statement);
                    found.push(Statement { line: number, text: &text[here..=here] });
                    open = None;
                }
                b'{' => depth += 1,
                b'}' => depth -= 1,
                b';' if depth == 0 => {
                    found.push(statement);
                    open = None;
                }
                b':' if statement.text.starts_with('$') => {
                    found.push(Statement { line: first, text: &text[start..=here] });
                    open = None;
                }
                _ => {}
            }
        }
        let whole = [".version", ".target", ".address_size"];
        if let Some((start, line)) = open.filter(|(_, line)| *line == number) {
            let rest = text[start..offset + code.len()].trim_end();
            if whole.iter().any(|word| rest.starts_with(word)) {
                found.push(Statement { line, text: rest });
                open = None;
            }
        }
        offset += line.len();
    }
    // An open statement at the end is passed on: nothing there is valid without its `;`.
    found.extend(open.map(|(start, line)| Statement { line, text: &text[start..] }));
    found
}

/// Parses an instruction.
///
/// # Errors
/// What is not understood.
pub(crate) fn instruction(text: &str) -> Result<Instruction<'_>, String> {
    let (guard, rest) = match text.strip_prefix('@') {
        None => (None, text),
        Some(guarded) => {
            let (name, rest) = guarded.split_once(char::is_whitespace).ok_or("a guard alone")?;
            let negated = name.strip_prefix('!');
            (Some((negated.unwrap_or(name), negated.is_some())), rest.trim_start())
        }
    };
    let (opcode, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let operands = split(rest.trim()).into_iter().map(operand).collect::<Result<_, _>>()?;
    Ok(Instruction { guard, opcode, operands })
}

/// Splits at commas outside of braces.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    if !text[from..].trim().is_empty() {
        parts.push(text[from..].trim());
    }
    parts
}

fn operand(text: &str) -> Result<Operand<'_>, String> {
    if let Some(inside) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        let (name, offset) = inside.split_once('+').unwrap_or((inside, "0"));
        let offset = offset.trim().parse().map_err(|_| format!("offset `{offset}`"))?;
        return Ok(Operand::Address(name.trim(), offset));
    }
    if let Some(inside) = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
        return Ok(Operand::Vector(
            split(inside).into_iter().map(operand).collect::<Result<_, _>>()?,
        ));
    }
    if let Some((a, b)) = text.split_once('|') {
        return Ok(Operand::Pair(a.trim(), b.trim()));
    }
    match number(text) {
        Some(bits) => Ok(Operand::Number(bits)),
        None if text.starts_with(|first: char| first.is_ascii_digit() || first == '-') => {
            Err(format!("number `{text}`"))
        }
        None => Ok(Operand::Name(text)),
    }
}

/// Bits of a number: decimal, hexadecimal, or `0f` and the bits of an `f32`.
pub(crate) fn number(text: &str) -> Option<u64> {
    if let Some(bits) = text.strip_prefix("0f").or_else(|| text.strip_prefix("0F")) {
        return u32::from_str_radix(bits, 16).ok().map(u64::from);
    }
    if let Some(bits) = text.strip_prefix("0x") {
        return u64::from_str_radix(bits, 16).ok();
    }
    text.parse::<i64>().map(|value| value as u64).or_else(|_| text.parse()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_end_at_semicolons_braces_and_labels() {
        let text = ".version 8.0\n.visible .entry k(\n\t.param .u64 a, // first\n\t.param .u32 b\n)\n.maxntid 256, 1, 1\n{\n\
                    $L_1:\n\t@%p1 bra $L_1;\n\tld.v2.u32 {%r1, %r2}, [%rd1+-4];\n}\n.global .b8 t[2] = {1,\n2};\n";
        let found: Vec<_> = statements(text).iter().map(|s| (s.line, s.text)).collect();
        let head =
            ".visible .entry k(\n\t.param .u64 a, // first\n\t.param .u32 b\n)\n.maxntid 256, 1, 1";
        assert_eq!(found[..3], [(1, ".version 8.0"), (2, head), (7, "{")]);
        let tail = [
            (8, "$L_1:"),
            (9, "@%p1 bra $L_1"),
            (10, "ld.v2.u32 {%r1, %r2}, [%rd1+-4]"),
            (11, "}"),
        ];
        assert_eq!(found[3..7], tail);
        assert_eq!(found[7..], [(12, ".global .b8 t[2] = {1,\n2}")]);
    }

    #[test]
    fn every_form_of_operand_is_parsed() {
        let parsed =
            instruction("@!%p3 shfl.sync.bfly.b32 \t%r1|%p1, {%r2, -1}, [a+-8], 0f3F800000")
                .expect("valid");
        assert_eq!((parsed.guard, parsed.opcode), (Some(("%p3", true)), "shfl.sync.bfly.b32"));
        let vector = Operand::Vector(vec![Operand::Name("%r2"), Operand::Number(u64::MAX)]);
        let rest = [
            Operand::Pair("%r1", "%p1"),
            vector,
            Operand::Address("a", -8),
            Operand::Number(0x3f80_0000),
        ];
        assert_eq!(parsed.operands, rest);
        assert!(instruction("add.s32 %r1, 1x").is_err());
    }
}
