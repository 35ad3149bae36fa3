//! Reads GBNF, as llama.cpp's `grammars/README.md` documents it.

use std::collections::HashMap;

use text::tokenizer::Tokenizer;

use super::{Expr, Rule, Rules};
use crate::{Error, Limits};

/// The largest number in `{m,n}`; llama.cpp has the same limit.
const MAX_REPEATED: u32 = 2000;

pub(super) fn parse(text: &str, tokenizer: &Tokenizer, limits: &Limits) -> Result<Rules, Error> {
    let chars = text.chars().collect();
    let (rules, names) = (Vec::new(), HashMap::new());
    let mut parser = Parser { chars, at: 0, line: 1, rules, names, depth: 0, tokenizer, limits };
    parser.space(true);
    while parser.peek().is_some() {
        parser.rule()?;
    }
    let undefined = parser.rules.iter().find(|rule| rule.expr.is_none());
    if let Some(Rule { name, line, .. }) = undefined {
        return Err(Error::Gbnf { line: *line, reason: format!("undefined rule '{name}'") });
    }
    match parser.names.get("root") {
        Some(&root) => Ok(Rules { rules: parser.rules, root }),
        None => Err(Error::Gbnf { line: parser.line, reason: "there is no rule 'root'".into() }),
    }
}

struct Parser<'a> {
    chars: Vec<char>,
    at: usize,
    line: usize,
    rules: Vec<Rule>,
    names: HashMap<String, usize>,
    /// Number of open parentheses.
    depth: usize,
    tokenizer: &'a Tokenizer,
    limits: &'a Limits,
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += 1;
        self.line += usize::from(c == '\n');
        Some(c)
    }

    fn take(&mut self, text: &str) -> bool {
        let found = text.chars().enumerate().all(|(i, c)| self.chars.get(self.at + i) == Some(&c));
        if found {
            self.at += text.chars().count();
        }
        found
    }

    fn error<T>(&self, reason: impl Into<String>) -> Result<T, Error> {
        Err(Error::Gbnf { line: self.line, reason: reason.into() })
    }

    fn expected<T>(&self, what: &str) -> Result<T, Error> {
        match self.peek() {
            Some(c) => self.error(format!("expected {what}, found {c:?}")),
            None => self.error(format!("expected {what}, found the end of the grammar")),
        }
    }

    /// Skips spaces and comments; with `lines`, also line breaks.
    fn space(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                '#' => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.at += 1;
                    }
                }
                '\n' | '\r' if !lines => return,
                ' ' | '\t' | '\n' | '\r' => {
                    self.next();
                }
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Result<String, Error> {
        let start = self.at;
        while self.peek().is_some_and(is_name) {
            self.at += 1;
        }
        if start == self.at {
            return self.expected("the name of a rule");
        }
        Ok(self.chars[start..self.at].iter().collect())
    }

    /// Index of the rule with this name. The rule may be defined later in the text.
    fn index(&mut self, name: String) -> Result<usize, Error> {
        if let Some(index) = self.names.get(&name) {
            return Ok(*index);
        }
        let index = self.rules.len();
        if index == self.limits.n_rules {
            let (what, limit) = ("GBNF grammar", self.limits.n_rules);
            return Err(Error::TooLarge { what, found: index + 1, limit, unit: "rules" });
        }
        self.names.insert(name.clone(), index);
        self.rules.push(Rule { name, line: self.line, expr: None });
        Ok(index)
    }

    fn rule(&mut self) -> Result<(), Error> {
        let name = self.name()?;
        let index = self.index(name)?;
        self.space(false);
        if !self.take("::=") {
            return self.expected("'::='");
        }
        self.space(true);
        let expr = self.alternatives()?;
        if self.rules[index].expr.is_some() {
            let name = &self.rules[index].name;
            return self.error(format!("rule '{name}' is defined twice"));
        }
        self.rules[index].expr = Some(expr);
        if !matches!(self.peek(), None | Some('\n' | '\r')) {
            return self.expected("a line break or the end of the rule");
        }
        self.space(true);
        Ok(())
    }

    fn alternatives(&mut self) -> Result<Expr, Error> {
        let mut all = vec![self.sequence()?];
        loop {
            // A rule may continue on the next line with '|'.
            let before = (self.at, self.line);
            self.space(true);
            if !self.take("|") {
                if self.depth == 0 {
                    (self.at, self.line) = before;
                }
                break;
            }
            self.space(true);
            all.push(self.sequence()?);
        }
        Ok(match all.pop() {
            Some(only) if all.is_empty() => only,
            last => Expr::Alternatives(all.into_iter().chain(last).collect()),
        })
    }

    fn sequence(&mut self) -> Result<Expr, Error> {
        let mut all = Vec::new();
        while let Some(c) = self.peek() {
            let element = match c {
                '"' => Expr::Literal(self.literal()?),
                '[' => self.class()?,
                '(' => self.group()?,
                '.' => {
                    self.next();
                    Expr::Any
                }
                '<' | '!' => self.token()?,
                c if is_name(c) => {
                    let name = self.name()?;
                    Expr::Rule(self.index(name)?)
                }
                _ => break,
            };
            let element = self.repeated(element)?;
            all.push(element);
            self.space(self.depth > 0);
        }
        Ok(match all.pop() {
            Some(only) if all.is_empty() => only,
            last => Expr::Sequence(all.into_iter().chain(last).collect()),
        })
    }

    fn group(&mut self) -> Result<Expr, Error> {
        self.next();
        self.depth += 1;
        if self.depth > self.limits.n_nested {
            let (what, limit) = ("GBNF grammar", self.limits.n_nested);
            return Err(Error::TooLarge { what, found: self.depth, limit, unit: "levels" });
        }
        self.space(true);
        let inner = self.alternatives()?;
        self.space(true);
        if !self.take(")") {
            return self.expected("')'");
        }
        self.depth -= 1;
        Ok(inner)
    }

    /// The repetitions after an element: any number of `?`, `*`, `+`, `{m}`, `{m,}` and `{m,n}`.
    fn repeated(&mut self, mut element: Expr) -> Result<Expr, Error> {
        for _ in 0..self.limits.n_nested {
            let before = (self.at, self.line);
            self.space(self.depth > 0);
            let (least, most) = match self.peek() {
                Some('?') => (0, Some(1)),
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('{') => {
                    self.next();
                    let bounds = self.bounds()?;
                    element = Expr::Repeat(Box::new(element), bounds.0, bounds.1);
                    continue;
                }
                _ => {
                    (self.at, self.line) = before;
                    return Ok(element);
                }
            };
            self.next();
            element = Expr::Repeat(Box::new(element), least, most);
        }
        self.error("too many repetitions of one element")
    }

    fn bounds(&mut self) -> Result<(u32, Option<u32>), Error> {
        self.space(true);
        let least = self.number()?;
        self.space(true);
        let most = if self.take(",") {
            self.space(true);
            if self.peek() == Some('}') { None } else { Some(self.number()?) }
        } else {
            Some(least)
        };
        self.space(true);
        if !self.take("}") {
            return self.expected("'}'");
        }
        if most.is_some_and(|most| most < least) {
            return self.error("the second number of {m,n} is smaller than the first");
        }
        Ok((least, most))
    }

    fn number(&mut self) -> Result<u32, Error> {
        let start = self.at;
        while self.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
        if start == self.at {
            return self.expected("a number");
        }
        let digits: String = self.chars[start..self.at].iter().collect();
        match digits.parse() {
            Ok(n) if n <= MAX_REPEATED => Ok(n),
            _ => self.error(format!("{digits} repetitions; the limit is {MAX_REPEATED}")),
        }
    }

    fn literal(&mut self) -> Result<String, Error> {
        self.next();
        let mut text = String::new();
        loop {
            match self.peek() {
                None | Some('\n') => return self.expected("'\"'"),
                Some('"') => break,
                Some(_) => text.push(self.character()?),
            }
        }
        self.next();
        Ok(text)
    }

    fn class(&mut self) -> Result<Expr, Error> {
        self.next();
        let negated = self.take("^");
        let mut ranges = Vec::new();
        loop {
            match self.peek() {
                None | Some('\n') => return self.expected("']'"),
                Some(']') => break,
                Some(_) => {}
            }
            let first = self.character()?;
            let more = self.chars.get(self.at + 1).is_some_and(|c| *c != ']');
            if self.peek() == Some('-') && more {
                self.next();
                let last = self.character()?;
                if last < first {
                    return self.error(format!("the range {first:?}-{last:?} is empty"));
                }
                ranges.push((first, last));
            } else {
                ranges.push((first, first));
            }
        }
        self.next();
        match (ranges.is_empty(), negated) {
            (true, false) => self.error("an empty class matches no character"),
            (true, true) => Ok(Expr::Any),
            (false, _) => Ok(Expr::Class { negated, ranges }),
        }
    }

    /// One character of a literal or class.
    fn character(&mut self) -> Result<char, Error> {
        let Some(c) = self.next() else { return self.expected("a character") };
        if c != '\\' {
            return Ok(c);
        }
        let Some(escape) = self.next() else { return self.expected("an escape") };
        match escape {
            'x' => self.hex(2),
            'u' => self.hex(4),
            'U' => self.hex(8),
            't' => Ok('\t'),
            'r' => Ok('\r'),
            'n' => Ok('\n'),
            '\\' | '"' | '[' | ']' | '-' | '^' | '/' => Ok(escape),
            _ => self.error(format!("unknown escape '\\{escape}'")),
        }
    }

    fn hex(&mut self, n: usize) -> Result<char, Error> {
        let mut code = 0u32;
        for _ in 0..n {
            let Some(digit) = self.peek().and_then(|c| c.to_digit(16)) else {
                return self.expected(&format!("{n} hexadecimal digits"));
            };
            self.at += 1;
            code = code << 4 | digit;
        }
        match char::from_u32(code) {
            Some(c) => Ok(c),
            None => self.error(format!("U+{code:04X} is not a character")),
        }
    }

    /// `<text>` or `<[id]>`; with `!` before it, any other token.
    fn token(&mut self) -> Result<Expr, Error> {
        let negated = self.take("!");
        if !self.take("<") {
            return self.expected("'<'");
        }
        let start = self.at;
        while self.peek().is_some_and(|c| c != '>' && c != '\n') {
            self.at += 1;
        }
        let name: String = self.chars[start..self.at].iter().collect();
        if !self.take(">") {
            return self.expected("'>'");
        }
        let number = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        let id = match number {
            Some(id) => id.trim().parse().ok(),
            None => self.tokenizer.id_of(&format!("<{name}>")),
        };
        match id.filter(|id| (*id as usize) < self.tokenizer.n_vocab()) {
            // End-of-generation tokens are not part of the text, so a negated token must exclude
            // them.
            Some(id) if negated => {
                let ids = [&[id], self.tokenizer.eog()].concat();
                Ok(Expr::Token { negated, ids })
            }
            Some(id) => Ok(Expr::Token { negated, ids: vec![id] }),
            None => self.error(format!("the vocabulary has no token <{name}>")),
        }
    }
}
