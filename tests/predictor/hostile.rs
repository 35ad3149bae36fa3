//! Contents with a correct checksum and invalid contents.

use std::path::Path;

use thermocline::gguf::TensorType;
use thermocline::learned::{self, Section, SectionContents, SideFile};
use thermocline::predictor::{Chooser, ERRORS, read};

use super::model;

const N_EMBD: usize = 256;
const N_FF: usize = 1280;

/// The contents of a predictor's section for four layers; each check changes one or two fields.
struct Contents {
    version: u64,
    /// Shapes of the two matrices; `[0, 0]` omits a matrix.
    fc1: [u64; 2],
    fc2: [u64; 2],
    ty: TensorType,
    bias: Vec<f32>,
    curve: Vec<f32>,
    layers: usize,
    levels: [f32; 2],
}

impl Default for Contents {
    fn default() -> Contents {
        let thresholds = (0..ERRORS.len()).map(|i| i as f32);
        Contents {
            version: 1,
            fc1: [N_EMBD as u64, 32],
            fc2: [32, N_FF as u64],
            ty: TensorType::F16,
            bias: vec![0.0; N_FF],
            curve: thresholds.chain(vec![0.5; 4 * ERRORS.len()]).collect(),
            layers: 4,
            levels: [0.05, 0.1],
        }
    }
}

impl Contents {
    fn save(&self, path: &Path) {
        let model = model(None);
        let mut contents = SectionContents::default();
        contents.set("version", self.version);
        contents.set("recipe", "none");
        contents.set("neurons", model.ffn_function());
        contents.f32s("levels", &[2], &self.levels);
        for i in 0..self.layers {
            for (name, shape) in [("fc1", self.fc1), ("fc2", self.fc2)] {
                if shape == [0, 0] {
                    continue;
                }
                let block = self.ty.block().unwrap();
                let bytes = shape[0] * shape[1] / block.values * block.bytes;
                contents.tensor(
                    &format!("blk.{i}.{name}"),
                    &shape,
                    self.ty,
                    vec![0; bytes as usize],
                );
            }
            contents.f32s(&format!("blk.{i}.bias"), &[self.bias.len() as u64], &self.bias);
            contents.f32s(&format!("blk.{i}.trained"), &[1], &[0.0]);
            let shape = [ERRORS.len() as u64, self.curve.len() as u64 / ERRORS.len() as u64];
            contents.f32s(&format!("blk.{i}.curve"), &shape, &self.curve);
        }
        learned::save(path, &model.file, Section::Predictor, &contents, false).unwrap();
    }

    fn read(&self) -> Result<Option<Chooser>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("learned.gguf");
        self.save(&path);
        let model = model(None);
        let learned = SideFile::open(&path, &model.file).unwrap();
        read(&learned, &model).map_err(|error| error.to_string())
    }
}

#[track_caller]
fn check(parts: &Contents, says: &str) {
    let error = parts.read().map(|_| ()).unwrap_err();
    assert!(error.contains(says), "{says:?} is not in {error:?}");
}

#[test]
fn mismatched_predictor_sections_are_refused() {
    assert!(matches!(Contents::default().read(), Ok(Some(chooser)) if chooser.layers.len() == 4));
    check(&Contents { version: 9, ..Contents::default() }, "version");
    check(&Contents { fc1: [128, 32], ..Contents::default() }, "blk.0.fc1");
    check(&Contents { fc1: [256, 64], ..Contents::default() }, "blk.0.fc");
    check(&Contents { fc2: [32, 1279], ..Contents::default() }, "blk.0.fc2");
    check(&Contents { fc2: [64, 1280], ..Contents::default() }, "blk.0.fc");
    check(&Contents { fc1: [256, 0], fc2: [0, 1280], ..Contents::default() }, "blk.0.fc");
    // Without `fc1`, `fc2` must be as wide as the inputs.
    let signs = |fc2| Contents { fc1: [0, 0], fc2, ..Contents::default() };
    assert!(signs([N_EMBD as u64, N_FF as u64]).read().is_ok());
    check(&signs([32, N_FF as u64]), "blk.0.fc2");
    check(&signs([N_EMBD as u64, 1279]), "blk.0.fc2");
    check(&signs([0, 0]), "blk.0.fc2");
    check(&Contents { ty: TensorType::I32, ..Contents::default() }, "blk.0.fc1");
    check(&Contents { ty: TensorType::F64, ..Contents::default() }, "blk.0.fc1");
    check(&Contents { bias: vec![0.0; 5], ..Contents::default() }, "blk.0.bias");
    check(&Contents { bias: vec![f32::NAN; N_FF], ..Contents::default() }, "NaN");
    check(&Contents { levels: [0.1, 0.05], ..Contents::default() }, "in ascending order");
    check(&Contents { levels: [f32::NAN, 0.05], ..Contents::default() }, "levels");
    check(&Contents { layers: 3, ..Contents::default() }, "3 of 4 layers");
    check(&Contents { layers: 0, ..Contents::default() }, "0 of 4 layers");
    let falling = (0..5 * ERRORS.len()).map(|i| -(i as f32)).collect();
    check(&Contents { curve: falling, ..Contents::default() }, "ascending thresholds");
    check(&Contents { curve: vec![f32::INFINITY; 5 * ERRORS.len()], ..Contents::default() }, "inf");
    check(&Contents { curve: vec![0.0; 4 * ERRORS.len()], ..Contents::default() }, "blk.0.curve");
}

#[test]
fn invalid_thresholds_are_refused() {
    let silu = model(Some("silu"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("learned.gguf");
    for (weight, ok) in [(1.0, true), (0.0, false), (-1.0, false), (f32::NAN, false)] {
        let mut contents = SectionContents::default();
        contents.set("version", 1u64);
        contents.set("recipe", "none");
        contents.set("neurons", silu.ffn_function());
        contents.f32s("levels", &[2], &[0.05, 0.1]);
        for i in 0..4 {
            contents.f32s(&format!("blk.{i}.weights"), &[N_FF as u64], &[weight; N_FF]);
            let shape = [ERRORS.len() as u64, 5];
            contents.f32s(&format!("blk.{i}.curve"), &shape, &[0.5; 5 * ERRORS.len()]);
        }
        learned::save(&path, &silu.file, Section::Thresholds, &contents, false).unwrap();
        let learned = SideFile::open(&path, &silu.file).unwrap();
        assert_eq!(read(&learned, &silu).is_ok(), ok, "{weight}");
        // Thresholds are valid only for one activation function.
        let gelu = read(&learned, &model(Some("gelu"))).unwrap_err().to_string();
        assert!(gelu.contains("Gelu") && gelu.contains("Silu"), "{gelu}");
        // With its own activation the model needs a predictor, which the file lacks.
        assert!(read(&learned, &model(None)).unwrap().is_none());
    }
}
