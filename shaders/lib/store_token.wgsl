// Stores the values of token t that invocation i of a row stores, in a row of the cache.
fn {{self}}_store_token(t: u32, i: u32, row: u32) {
    {{self}}_store(p.at_{{self}}_x + t * p.{{self}}_cols, i, p.at_{{self}}_cache + row * p.{{self}}_words);
}
