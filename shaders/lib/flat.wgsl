// Index of this invocation in a two-dimensional grid.
fn flat_index(id: vec3<u32>, groups: vec3<u32>) -> u32 {
    return id.x + id.y * groups.x * {{FLAT}}u;
}
