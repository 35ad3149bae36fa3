//! The stack machine: opcodes, stack, memo, and nodes that refer to each other by index.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::{GLOBALS, Global, MAX_AXES, MAX_NAME, MAX_NODES, Problem, REFUSED, View};

pub(super) type Id = u32;

#[derive(Clone, Debug)]
enum Node {
    /// A value that no tensor uses: None, bool, float, bytes.
    Other,
    Mark,
    Int(i64),
    Text(Rc<str>),
    Tuple(Vec<Id>),
    List,
    Dict(Vec<(Id, Id)>),
    Global(Global),
    Storage {
        class: &'static str,
        key: Rc<str>,
        n_stored: u64,
    },
    Tensor(View),
}

pub(super) struct Machine<'a> {
    bytes: &'a [u8],
    /// Offset of the next opcode.
    pub(super) at: usize,
    nodes: Vec<Node>,
    stack: Vec<Id>,
    memo: HashMap<u64, Id>,
}

impl<'a> Machine<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Machine<'a> {
        Machine { bytes, at: 0, nodes: Vec::new(), stack: Vec::new(), memo: HashMap::new() }
    }

    /// Executes one opcode. The last opcode returns the node of the result.
    pub(super) fn step(&mut self) -> Result<Option<Id>, Problem> {
        match self.byte()? {
            b'\x80' => self.protocol()?,
            b'\x95' => drop(self.take(8)?),
            b'.' => return self.pop("STOP", "value").map(Some),
            b'(' => self.push(Node::Mark)?,
            b'0' => drop(self.pop("POP", "value")?),
            b'1' => drop(self.pop_mark("POP_MARK")?),
            b'N' | b'\x88' | b'\x89' => self.push(Node::Other)?,
            b'G' => {
                self.take(8)?;
                self.push(Node::Other)?;
            }
            b'}' => self.push(Node::Dict(Vec::new()))?,
            b']' => self.push(Node::List)?,
            b')' => self.push(Node::Tuple(Vec::new()))?,
            b't' => {
                let items = self.pop_mark("TUPLE")?;
                self.push(Node::Tuple(items))?;
            }
            opcode @ b'\x85'..=b'\x87' => self.tuple(usize::from(opcode - b'\x84'))?,
            b'J' => {
                let value = i64::from(self.read_little_endian(4)? as u32 as i32);
                self.push(Node::Int(value))?;
            }
            b'K' => self.int(1)?,
            b'M' => self.int(2)?,
            b'\x8a' => self.long()?,
            b'U' | b'\x8c' => self.text(1)?,
            b'T' | b'X' => self.text(4)?,
            b'\x8d' => self.text(8)?,
            b'C' => self.binary(1)?,
            b'B' => self.binary(4)?,
            b'\x8e' => self.binary(8)?,
            b'q' => self.put(1)?,
            b'r' => self.put(4)?,
            b'\x94' => {
                let top = self.top("MEMOIZE")?;
                self.memo.insert(self.memo.len() as u64, top);
            }
            b'h' => self.get(1)?,
            b'j' => self.get(4)?,
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(&format!("{module}.{name}"))?;
            }
            b'\x93' => {
                let (name, module) =
                    (self.pop_text("STACK_GLOBAL")?, self.pop_text("STACK_GLOBAL")?);
                self.global(&format!("{module}.{name}"))?;
            }
            b'R' => self.reduce()?,
            // The state of a dictionary holds versions of modules, not tensors.
            b'b' => drop(self.pop("BUILD", "state")?),
            b'Q' => self.storage()?,
            b's' => {
                let (value, key) = (self.pop("SETITEM", "value")?, self.pop("SETITEM", "key")?);
                self.set_items("SETITEM", vec![key, value])?;
            }
            b'u' => {
                let items = self.pop_mark("SETITEMS")?;
                self.set_items("SETITEMS", items)?;
            }
            b'a' => {
                self.pop("APPEND", "value")?;
                self.check_list("APPEND")?;
            }
            b'e' => {
                self.pop_mark("APPENDS")?;
                self.check_list("APPENDS")?;
            }
            opcode => {
                let known = REFUSED.iter().find(|(code, _)| *code == opcode);
                let name = known.map_or(format!("0x{opcode:02x}"), |(_, name)| (*name).to_owned());
                return Err(Problem::Opcode { name });
            }
        }
        Ok(None)
    }

    fn byte(&mut self) -> Result<u8, Problem> {
        Ok(self.take(1)?[0])
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], Problem> {
        let end = self.at.checked_add(n).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or(Problem::Truncated)?;
        let bytes = &self.bytes[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    fn read_little_endian(&mut self, n: usize) -> Result<u64, Problem> {
        Ok(self.take(n)?.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    fn line(&mut self) -> Result<String, Problem> {
        let rest = &self.bytes[self.at..];
        let len = rest.iter().position(|&byte| byte == b'\n').ok_or(Problem::Truncated)?;
        let line = String::from_utf8(self.take(len)?.to_vec()).map_err(|_| Problem::Text)?;
        self.take(1)?;
        Ok(line)
    }

    fn protocol(&mut self) -> Result<(), Problem> {
        match self.byte()? {
            2..=5 => Ok(()),
            found => Err(Problem::Protocol { found }),
        }
    }

    fn push(&mut self, node: Node) -> Result<(), Problem> {
        if self.nodes.len() >= MAX_NODES {
            return Err(Problem::TooMany);
        }
        self.stack.push(self.nodes.len() as Id);
        self.nodes.push(node);
        Ok(())
    }

    fn node(&self, id: Id) -> &Node {
        &self.nodes[id as usize]
    }

    fn top(&self, name: &'static str) -> Result<Id, Problem> {
        self.stack.last().copied().ok_or(Problem::Stack { name, expected: "value" })
    }

    fn pop(&mut self, name: &'static str, expected: &'static str) -> Result<Id, Problem> {
        self.stack.pop().ok_or(Problem::Stack { name, expected })
    }

    fn pop_text(&mut self, name: &'static str) -> Result<Rc<str>, Problem> {
        let id = self.pop(name, "text")?;
        if let Node::Text(text) = self.node(id) {
            Ok(Rc::clone(text))
        } else {
            Err(Problem::Stack { name, expected: "text" })
        }
    }

    /// Pops the last mark and the values above it, and returns these values.
    fn pop_mark(&mut self, name: &'static str) -> Result<Vec<Id>, Problem> {
        let is_mark = |&id: &Id| matches!(self.node(id), Node::Mark);
        let at = self
            .stack
            .iter()
            .rposition(is_mark)
            .ok_or(Problem::Stack { name, expected: "mark" })?;
        let items = self.stack.split_off(at + 1);
        self.stack.pop();
        Ok(items)
    }

    fn tuple(&mut self, n: usize) -> Result<(), Problem> {
        let missing = Problem::Stack { name: "TUPLE", expected: "value" };
        let at = self.stack.len().checked_sub(n).ok_or(missing)?;
        let items = self.stack.split_off(at);
        self.push(Node::Tuple(items))
    }

    fn int(&mut self, n: usize) -> Result<(), Problem> {
        let value = self.read_little_endian(n)? as i64;
        self.push(Node::Int(value))
    }

    /// Pushes a signed integer; one of more than 8 bytes becomes [`Node::Other`].
    fn long(&mut self) -> Result<(), Problem> {
        let n = usize::from(self.byte()?);
        let bytes = self.take(n)?;
        if n > 8 {
            return self.push(Node::Other);
        }
        let fill = if bytes.last().is_some_and(|byte| byte & 0x80 != 0) { 0xff } else { 0 };
        let mut wide = [fill; 8];
        wide[..n].copy_from_slice(bytes);
        self.push(Node::Int(i64::from_le_bytes(wide)))
    }

    fn length(&mut self, n: usize) -> Result<usize, Problem> {
        usize::try_from(self.read_little_endian(n)?).map_err(|_| Problem::Truncated)
    }

    fn text(&mut self, n: usize) -> Result<(), Problem> {
        let len = self.length(n)?;
        // Copied before it is checked: another process may change the file in between.
        let text = String::from_utf8(self.take(len)?.to_vec()).map_err(|_| Problem::Text)?;
        self.push(Node::Text(text.into()))
    }

    fn binary(&mut self, n: usize) -> Result<(), Problem> {
        let len = self.length(n)?;
        self.take(len)?;
        self.push(Node::Other)
    }

    fn put(&mut self, n: usize) -> Result<(), Problem> {
        let at = self.read_little_endian(n)?;
        let top = self.top("PUT")?;
        self.memo.insert(at, top);
        Ok(())
    }

    fn get(&mut self, n: usize) -> Result<(), Problem> {
        let at = self.read_little_endian(n)?;
        let id = self.memo.get(&at).copied();
        self.stack.push(
            id.ok_or(Problem::Stack { name: "GET", expected: "memo entry with this index" })?,
        );
        Ok(())
    }

    fn global(&mut self, name: &str) -> Result<(), Problem> {
        match GLOBALS.iter().find(|(known, _)| *known == name) {
            Some((_, global)) => self.push(Node::Global(*global)),
            None => Err(Problem::Global { name: name.chars().take(200).collect() }),
        }
    }

    fn check_list(&mut self, name: &'static str) -> Result<(), Problem> {
        let top = self.top(name)?;
        if matches!(self.node(top), Node::List) {
            Ok(())
        } else {
            Err(Problem::Stack { name, expected: "list" })
        }
    }

    fn set_items(&mut self, name: &'static str, items: Vec<Id>) -> Result<(), Problem> {
        let top = self.top(name)?;
        let Node::Dict(pairs) = &mut self.nodes[top as usize] else {
            return Err(Problem::Stack { name, expected: "dictionary" });
        };
        let (whole, rest) = items.as_chunks::<2>();
        pairs.extend(whole.iter().map(|[key, value]| (*key, *value)));
        if rest.is_empty() {
            Ok(())
        } else {
            Err(Problem::Stack { name, expected: "value for each key" })
        }
    }

    /// Replaces a persistent id, `("storage", class, key, device, size)`, by its storage.
    fn storage(&mut self) -> Result<(), Problem> {
        let wrong =
            Problem::Arguments { what: "a storage", expected: "its class, key, device and size" };
        let id = self.pop("BINPERSID", "tuple")?;
        let Node::Tuple(parts) = self.node(id) else { return Err(wrong) };
        let &[kind, class, key, _device, n, ..] = parts.as_slice() else { return Err(wrong) };
        let (Node::Text(kind), Node::Global(Global::Storage(class)), Node::Text(key), Node::Int(n)) =
            (self.node(kind), self.node(class), self.node(key), self.node(n))
        else {
            return Err(wrong);
        };
        let (Ok(n_stored), "storage") = (u64::try_from(*n), &**kind) else {
            return Err(wrong);
        };
        check_name(key)?;
        let storage = Node::Storage { class, key: Rc::clone(key), n_stored };
        self.push(storage)
    }

    fn reduce(&mut self) -> Result<(), Problem> {
        let (arguments, callee) = (self.pop("REDUCE", "arguments")?, self.pop("REDUCE", "callee")?);
        let Node::Tuple(arguments) = self.node(arguments) else {
            return Err(Problem::Stack { name: "REDUCE", expected: "tuple of arguments" });
        };
        let Node::Global(global) = *self.node(callee) else {
            return Err(Problem::Stack { name: "REDUCE", expected: "name to call" });
        };
        match global {
            Global::Dict => self.push(Node::Dict(Vec::new())),
            Global::Tensor => {
                let view = self.view(arguments)?;
                self.push(Node::Tensor(view))
            }
            Global::Parameter => match arguments.first() {
                Some(&tensor) if matches!(self.node(tensor), Node::Tensor(_)) => {
                    self.stack.push(tensor);
                    Ok(())
                }
                _ => Err(Problem::Arguments { what: "a parameter", expected: "a tensor" }),
            },
            Global::Storage(_) => {
                Err(Problem::Arguments { what: "a storage", expected: "a persistent id" })
            }
        }
    }

    /// The tensor with the constructor arguments `(storage, offset, shape, strides, ...)`.
    fn view(&self, arguments: &[Id]) -> Result<View, Problem> {
        let expected = "a storage, an offset, a shape and one stride per axis";
        let wrong = Problem::Arguments { what: "a tensor", expected };
        let &[storage, offset, shape, strides, ..] = arguments else { return Err(wrong) };
        let (Node::Storage { class, key, n_stored }, Node::Int(offset)) =
            (self.node(storage), self.node(offset))
        else {
            return Err(wrong);
        };
        let (Some(shape), Some(strides)) = (self.numbers(shape)?, self.numbers(strides)?) else {
            return Err(wrong);
        };
        let Ok(offset) = u64::try_from(*offset) else { return Err(wrong) };
        if shape.len() != strides.len() {
            return Err(wrong);
        }
        let (key, n_stored) = (Rc::clone(key), *n_stored);
        Ok(View { name: String::new(), class, key, n_stored, offset, shape, strides })
    }

    /// The tuple of non-negative integers at `id`; `None` if the node is anything else. It is
    /// copied for each tensor that shares it, so its length is limited.
    fn numbers(&self, id: Id) -> Result<Option<Vec<u64>>, Problem> {
        let Node::Tuple(items) = self.node(id) else { return Ok(None) };
        if items.len() > MAX_AXES {
            return Err(Problem::Axes { found: items.len() });
        }
        let number =
            |&id: &Id| if let Node::Int(n) = self.node(id) { u64::try_from(*n).ok() } else { None };
        Ok(items.iter().map(number).collect())
    }

    /// The named tensors of the dictionary at `top`, or of its `state_dict`.
    pub(super) fn tensors(&self, top: Id) -> Result<Vec<View>, Problem> {
        let mut pairs = match self.node(top).clone() {
            Node::Dict(pairs) => pairs,
            // In a file with a single tensor, the tensor has no name.
            Node::Tensor(view) => return Ok(vec![View { name: String::new(), ..view }]),
            Node::Other
            | Node::Mark
            | Node::Int(_)
            | Node::Text(_)
            | Node::Tuple(_)
            | Node::List
            | Node::Global(_)
            | Node::Storage { .. } => return Err(Problem::NoDictionary),
        };
        let named =
            |id: Id| if let Node::Text(text) = self.node(id) { Some(&**text) } else { None };
        if let Some((_, inner)) = pairs.iter().find(|(key, _)| named(*key) == Some("state_dict"))
            && let Node::Dict(inner) = self.node(*inner)
        {
            pairs = inner.clone();
        }
        let (mut tensors, mut seen) = (Vec::new(), HashSet::new());
        for &(key, value) in &pairs {
            let (Node::Tensor(view), Some(name)) = (self.node(value), named(key)) else { continue };
            check_name(name)?;
            if !seen.insert(name) {
                return Err(Problem::Duplicate { tensor: name.to_owned() });
            }
            tensors.push(View { name: name.to_owned(), ..view.clone() });
        }
        Ok(tensors)
    }
}

/// Returns an error for a long name: names are copied for each tensor.
fn check_name(name: &str) -> Result<(), Problem> {
    match name.len() {
        0..=MAX_NAME => Ok(()),
        found => Err(Problem::Name { start: name.chars().take(40).collect(), found }),
    }
}
