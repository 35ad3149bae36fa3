//! Stores a model's predictor or thresholds in its side file, layer by layer, so that an
//! interrupted run can be resumed.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use hal::HostRows;

use super::{
    Chooser, Curve, ERRORS, Error, Evaluation, LayerPredictor, LayerThresholds, Layers, Levels,
    Result,
};
use crate::learned::{self, FIRST_USE, Section, SectionContents, SideFile};
use model::{Model, Predictor};

const VERSION: u64 = 1;
const VERSION_KEY: &str = "version";
/// How neuron values are computed ([`Model::ffn_function`]).
const NEURONS_KEY: &str = "neurons";
/// The settings of the run. An interrupted run can only be resumed with the same settings.
const RECIPE_KEY: &str = "recipe";
/// Tensor with the threshold of an imported predictor, which only an imported predictor has.
const IMPORTED: &str = "threshold";
/// Tensor with the errors of [`Levels`].
const LEVELS: &str = "levels";
/// Shape of a curve: threshold, error, fraction listed, recall and weighted recall for each of
/// [`ERRORS`].
const CURVE: [u64; 2] = [ERRORS.len() as u64, 5];

fn section_of(layers: &Layers) -> Section {
    match layers {
        Layers::Predictors(_) | Layers::Imported { .. } => Section::Predictor,
        Layers::Thresholds(_) => Section::Thresholds,
    }
}

/// Sizes that a section is checked against.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sizes {
    n_layer: usize,
    n_embd: usize,
    /// Neurons of each layer.
    n_ff: Vec<usize>,
}

impl Sizes {
    fn new(model: &Model) -> Sizes {
        let hyper = &model.hyper;
        Sizes { n_layer: hyper.n_layer, n_embd: hyper.n_embd, n_ff: model.neurons() }
    }
}

/// The section that holds the predictor or the thresholds of `model`.
#[must_use]
pub fn section(model: &Model) -> Section {
    section_of(&no_layers(model))
}

/// The stored data for `model`: a predictor if its activation has exact zeros, otherwise
/// thresholds; `None` if there is none.
///
/// # Errors
/// [`Error::Refused`] and [`Error::Damaged`]; [`Error::Unfinished`] if the run that made it was
/// interrupted.
pub fn read(learned: &SideFile, model: &Model) -> Result<Option<Chooser>> {
    let sizes = Sizes::new(model);
    let empty = no_layers(model);
    let section = section_of(&empty);
    if !learned.has(section) {
        return Ok(None);
    }
    check_neurons(learned, section, model)?;
    let layers = read_layers(learned, empty, &sizes)?;
    let levels = levels(learned, section)?;
    match (layers, levels) {
        (layers @ Layers::Imported { .. }, _) => Ok(Some(Chooser { layers, levels: None })),
        (layers, Some(_)) if layers.len() == sizes.n_layer => Ok(Some(Chooser { layers, levels })),
        (layers, _) => Err(Error::Unfinished {
            file: learned.name().to_owned(),
            found: layers.len(),
            expected: sizes.n_layer,
        }),
    }
}

/// Whether the stored data of `model` was made automatically on first use ([`FIRST_USE`]).
///
/// # Errors
/// [`Error::Refused`].
pub fn is_of_first_use(learned: &SideFile, model: &Model) -> Result<bool> {
    Ok(learned.text(section(model), RECIPE_KEY)?.starts_with(FIRST_USE))
}

/// Empty layers of the kind that `model` needs: predictors or thresholds.
fn no_layers(model: &Model) -> Layers {
    if model.is_exactly_sparse() {
        Layers::Predictors(Vec::new())
    } else {
        Layers::Thresholds(Vec::new())
    }
}

/// Returns an error for data of the same weights with another activation function, which a flag can
/// set.
fn check_neurons(learned: &SideFile, section: Section, model: &Model) -> Result<()> {
    let (expected, found) = (model.ffn_function(), learned.text(section, NEURONS_KEY)?);
    if found == expected {
        return Ok(());
    }
    Err(Error::Damaged {
        file: learned.name().to_owned(),
        what: format!("`{}.{NEURONS_KEY}`", section.name()),
        expected,
        found: found.to_owned(),
    })
}

/// The errors of the quality levels; `None` if the run that computes them is unfinished.
fn levels(learned: &SideFile, section: Section) -> Result<Option<Levels>> {
    if !learned.has_tensor(section, LEVELS) {
        return Ok(None);
    }
    let values = learned.f32s(section, LEVELS, &[2])?;
    let (balanced, fast) = (values[0], values[1]);
    // 0 stands for a quality level that was not reached.
    let level = |error: f32| (error > 0.0).then_some(error);
    if 0.0 <= balanced && balanced <= fast && fast < 1.0 {
        Ok(Some(Levels { balanced: level(balanced), fast: level(fast) }))
    } else {
        Err(Error::Damaged {
            file: learned.name().to_owned(),
            what: format!("`{}.{LEVELS}`", section.name()),
            expected: "two errors from 0 to below 1, in ascending order".to_owned(),
            found: format!("{balanced} and {fast}"),
        })
    }
}

/// A run that makes a model's predictor or thresholds, layer by layer.
#[derive(Debug)]
pub struct PredictorRun<'a> {
    model: &'a Model,
    path: &'a Path,
    recipe: String,
    layers: Layers,
    levels: Option<Levels>,
    interrupt: &'a AtomicBool,
}

impl<'a> PredictorRun<'a> {
    /// Starts a run with the settings `recipe`, which saves its result to `path`. Keeps the layers
    /// of an earlier run with the same recipe. Replaces those of another run if `restart` is set or
    /// that run was automatic ([`FIRST_USE`]). Setting `interrupt` ends a wait for other processes
    /// that write the file.
    ///
    /// # Errors
    /// [`Error::Refused`] for a file at `path` for another model; [`Error::OtherRecipe`];
    /// [`Error::Damaged`].
    pub fn new(
        model: &'a Model,
        path: &'a Path,
        recipe: &str,
        restart: bool,
        interrupt: &'a AtomicBool,
    ) -> Result<PredictorRun<'a>> {
        let (mut layers, mut found) = (no_layers(model), None);
        if path.exists() {
            let learned = SideFile::open(path, &model.file)?;
            let section = section_of(&layers);
            let resumes = learned.has(section) && !restart;
            let before = resumes.then(|| learned.text(section, RECIPE_KEY)).transpose()?;
            let replaced = |before: &&str| before.starts_with(FIRST_USE) && *before != recipe;
            if let Some(before) = before.filter(|before| !replaced(before)) {
                if before != recipe {
                    let (file, found) = (learned.name().to_owned(), before.to_owned());
                    return Err(Error::OtherRecipe { file, found, wanted: recipe.to_owned() });
                }
                check_neurons(&learned, section, model)?;
                layers = read_layers(&learned, layers, &Sizes::new(model))?;
                found = levels(&learned, section)?;
            }
        }
        let recipe = recipe.to_owned();
        Ok(PredictorRun { model, path, recipe, layers, levels: found, interrupt })
    }

    /// The finished layers.
    #[must_use]
    pub fn layers(&self) -> &Layers {
        &self.layers
    }

    /// Whether all layers and the quality levels are done.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.levels.is_some()
    }

    /// Adds the quality levels of the whole model, and saves the section.
    ///
    /// # Errors
    /// [`Error::Save`], [`Error::NewerResult`].
    pub fn finish(&mut self, levels: Levels) -> Result<()> {
        self.levels = Some(levels);
        self.save()
    }

    /// Replaces the layers by imported predictors, and saves the section.
    ///
    /// # Errors
    /// [`Error::Save`], [`Error::NewerResult`].
    pub fn import(&mut self, layers: Vec<Predictor>, threshold: f32) -> Result<()> {
        (self.layers, self.levels) = (Layers::Imported { layers, threshold }, None);
        self.save()
    }

    /// Appends a layer's predictor and saves the section.
    ///
    /// # Errors
    /// [`Error::Save`], [`Error::NewerResult`].
    ///
    /// # Panics
    /// If the run makes thresholds or imports predictors.
    pub fn add_predictor(&mut self, layer: LayerPredictor) -> Result<()> {
        match &mut self.layers {
            Layers::Predictors(layers) => layers.push(layer),
            Layers::Thresholds(_) | Layers::Imported { .. } => {
                panic!("this run makes thresholds or imports predictors")
            }
        }
        self.save()
    }

    /// Appends a layer's thresholds and saves the section.
    ///
    /// # Errors
    /// [`Error::Save`], [`Error::NewerResult`].
    ///
    /// # Panics
    /// If the run makes or imports predictors.
    pub fn add_thresholds(&mut self, layer: LayerThresholds) -> Result<()> {
        match &mut self.layers {
            Layers::Thresholds(layers) => layers.push(layer),
            Layers::Predictors(_) | Layers::Imported { .. } => {
                panic!("this run makes or imports predictors")
            }
        }
        self.save()
    }

    fn save(&self) -> Result<()> {
        let mut contents = SectionContents::default();
        contents.set(VERSION_KEY, VERSION);
        contents.set(RECIPE_KEY, self.recipe.as_str());
        contents.set(NEURONS_KEY, self.model.ffn_function());
        if let Some(Levels { balanced, fast }) = self.levels {
            vector(&mut contents, LEVELS, &[balanced, fast].map(Option::unwrap_or_default));
        }
        match &self.layers {
            Layers::Predictors(layers) => {
                for (i, layer) in layers.iter().enumerate() {
                    if let Some(fc1) = &layer.fc1 {
                        matrix(&mut contents, &format!("blk.{i}.fc1"), fc1)?;
                    }
                    matrix(&mut contents, &format!("blk.{i}.fc2"), &layer.fc2)?;
                    vector(&mut contents, &format!("blk.{i}.bias"), &layer.bias);
                    let trained = if layer.trained { 1.0 } else { 0.0 };
                    vector(&mut contents, &format!("blk.{i}.trained"), &[trained]);
                    curve(&mut contents, i, &layer.curve);
                }
            }
            Layers::Imported { layers, threshold } => {
                vector(&mut contents, IMPORTED, &[*threshold]);
                for (i, layer) in layers.iter().enumerate() {
                    matrix(&mut contents, &format!("blk.{i}.fc1"), &layer.fc1)?;
                    matrix(&mut contents, &format!("blk.{i}.fc2"), &layer.fc2)?;
                }
            }
            Layers::Thresholds(layers) => {
                for (i, layer) in layers.iter().enumerate() {
                    vector(&mut contents, &format!("blk.{i}.weights"), &layer.weights);
                    curve(&mut contents, i, &layer.curve);
                }
            }
        }
        let (path, file, interrupt) = (self.path, &self.model.file, self.interrupt);
        let section = section_of(&self.layers);
        let may_replace = |now: &SideFile| self.may_replace(now, section);
        if learned::save_if(path, file, section, &contents, false, interrupt, &may_replace)? {
            return Ok(());
        }
        Err(Error::NewerResult { file: path.display().to_string() })
    }

    /// Whether this run may replace the `section` in the file `now`. An explicitly requested run
    /// replaces every section. An automatic run ([`FIRST_USE`]) replaces only the section of
    /// another automatic run, and not one with the same recipe and more progress.
    fn may_replace(&self, now: &SideFile, section: Section) -> bool {
        let recipe = now.text(section, RECIPE_KEY).unwrap_or_default();
        if !self.recipe.starts_with(FIRST_USE) {
            return true;
        }
        let layers = read_layers(now, no_layers(self.model), &Sizes::new(self.model));
        let n_layers = layers.map_or(0, |layers| layers.len());
        let finished = matches!(levels(now, section), Ok(Some(_)));
        let is_further = n_layers > self.layers.len() || (finished && self.levels.is_none());
        recipe.starts_with(FIRST_USE) && (recipe != self.recipe || !is_further)
    }
}

fn vector(contents: &mut SectionContents, name: &str, values: &[f32]) {
    contents.f32s(name, &[values.len() as u64], values);
}

fn matrix(contents: &mut SectionContents, name: &str, rows: &HostRows) -> Result<()> {
    let desc = rows.desc();
    let bytes = rows.rows(0..desc.n_rows).map_err(|reason| Error::Read { reason })?;
    let shape = [desc.n_cols as u64, desc.n_rows as u64];
    contents.tensor(name, &shape, desc.format.into(), bytes.into_owned());
    Ok(())
}

fn curve(contents: &mut SectionContents, layer: usize, curve: &Curve) {
    let mut values = curve.thresholds.clone();
    let parts: [fn(&Evaluation) -> f64; 4] =
        [|v| v.error, |v| v.listed, |v| v.recall, |v| v.weighted_recall];
    for part in parts {
        values.extend(curve.evaluations.iter().map(|evaluation| part(evaluation) as f32));
    }
    contents.f32s(&format!("blk.{layer}.curve"), &CURVE, &values);
}

/// Reads the layers of a section. `empty` has no layers; its variant selects the section.
fn read_layers(learned: &SideFile, empty: Layers, sizes: &Sizes) -> Result<Layers> {
    let section = section_of(&empty);
    let reader = Reader { learned, section, sizes };
    let version = learned.u64(section, VERSION_KEY)?;
    if version != VERSION {
        return Err(reader.damaged_error(
            "version".into(),
            VERSION.to_string(),
            version.to_string(),
        ));
    }
    if section == Section::Predictor && learned.has_tensor(section, IMPORTED) {
        let threshold = reader.vector(IMPORTED, 1)?[0];
        let layers = (0..sizes.n_layer).map(|i| reader.matrices(i)).collect::<Result<_>>()?;
        return Ok(Layers::Imported { layers, threshold });
    }
    let has = |i: &usize| learned.has_tensor(section, &format!("blk.{i}.curve"));
    let layers = (0..sizes.n_layer).take_while(has);
    Ok(match empty {
        Layers::Predictors(_) | Layers::Imported { .. } => {
            Layers::Predictors(layers.map(|i| reader.predictor(i)).collect::<Result<_>>()?)
        }
        Layers::Thresholds(_) => {
            Layers::Thresholds(layers.map(|i| reader.thresholds(i)).collect::<Result<_>>()?)
        }
    })
}

struct Reader<'a> {
    learned: &'a SideFile,
    section: Section,
    sizes: &'a Sizes,
}

impl Reader<'_> {
    fn matrices(&self, layer: usize) -> Result<Predictor> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let fc1 = self.learned.matrix(self.section, &name("fc1"))?;
        let fc2 = self.learned.matrix(self.section, &name("fc2"))?;
        let (n_embd, n_ff) = (self.sizes.n_embd, self.sizes.n_ff[layer]);
        self.check_shape(name("fc1"), &fc1, [fc2.desc().n_cols, n_embd])?;
        self.check_shape(name("fc2"), &fc2, [n_ff, fc1.desc().n_rows])?;
        Ok(Predictor { fc1, fc2 })
    }

    fn check_shape(&self, name: String, rows: &HostRows, expected: [usize; 2]) -> Result<()> {
        let found = [rows.desc().n_rows, rows.desc().n_cols];
        if found == expected && rows.desc().format.is_weight() && !found.contains(&0) {
            Ok(())
        } else {
            Err(self.damaged_error(name, format!("{expected:?}"), format!("{found:?}")))
        }
    }

    fn predictor(&self, layer: usize) -> Result<LayerPredictor> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (fc1, fc2) = if self.learned.has_tensor(self.section, &name("fc1")) {
            let Predictor { fc1, fc2 } = self.matrices(layer)?;
            (Some(fc1), fc2)
        } else {
            let fc2 = self.learned.matrix(self.section, &name("fc2"))?;
            self.check_shape(name("fc2"), &fc2, [self.sizes.n_ff[layer], self.sizes.n_embd])?;
            (None, fc2)
        };
        let trained = self.vector(&name("trained"), 1)?[0] > 0.0;
        Ok(LayerPredictor {
            fc1,
            fc2,
            bias: self.vector(&name("bias"), self.sizes.n_ff[layer])?,
            curve: self.curve(layer)?,
            trained,
        })
    }

    fn thresholds(&self, layer: usize) -> Result<LayerThresholds> {
        let name = format!("blk.{layer}.weights");
        let weights = self.vector(&name, self.sizes.n_ff[layer])?;
        if let Some(found) = weights.iter().find(|weight| **weight <= 0.0) {
            return Err(self.damaged_error(name, "positive numbers".into(), found.to_string()));
        }
        Ok(LayerThresholds { weights, curve: self.curve(layer)? })
    }

    fn curve(&self, layer: usize) -> Result<Curve> {
        let name = format!("blk.{layer}.curve");
        let values = self.learned.f32s(self.section, &name, &CURVE)?;
        self.finite(&name, &values)?;
        let (thresholds, evaluations) = values.split_at(ERRORS.len());
        if let Some(pair) = thresholds.windows(2).find(|pair| pair[0] > pair[1]) {
            let expected = "ascending thresholds".to_owned();
            return Err(self.damaged_error(
                name,
                expected,
                format!("{} after {}", pair[1], pair[0]),
            ));
        }
        let part = |part: usize, i: usize| f64::from(evaluations[part * ERRORS.len() + i]);
        let evaluation = |i| Evaluation {
            error: part(0, i),
            listed: part(1, i),
            recall: part(2, i),
            weighted_recall: part(3, i),
        };
        let evaluations = (0..ERRORS.len()).map(evaluation).collect();
        Ok(Curve { thresholds: thresholds.to_vec(), evaluations })
    }

    fn vector(&self, name: &str, n: usize) -> Result<Vec<f32>> {
        let values = self.learned.f32s(self.section, name, &[n as u64])?;
        self.finite(name, &values)?;
        Ok(values)
    }

    fn finite(&self, name: &str, values: &[f32]) -> Result<()> {
        match values.iter().find(|value| !value.is_finite()) {
            Some(found) => {
                Err(self.damaged_error(name.to_owned(), "finite numbers".into(), found.to_string()))
            }
            None => Ok(()),
        }
    }

    fn damaged_error(&self, what: String, expected: String, found: String) -> Error {
        let file = self.learned.name().to_owned();
        Error::Damaged { file, what: format!("`{}.{what}`", self.section.name()), expected, found }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::ModelOptions;

    #[test]
    fn automatic_runs_do_not_replace_newer_results() {
        let file = runtime::embedded::file().unwrap();
        let model = Model::from_file(file, &ModelOptions::default()).unwrap();
        let (folder, never) = (tempfile::tempdir().unwrap(), AtomicBool::new(false));
        let path = folder.path().join("model.thermocline.gguf");
        let maker =
            |it: &str, restart| PredictorRun::new(&model, &path, it, restart, &never).unwrap();
        let [automatic, other] = ["a", "b"].map(|text| format!("{FIRST_USE} {text}"));
        let levels = Levels { balanced: Some(0.1), fast: Some(0.2) };
        let recipe = || {
            let learned = SideFile::open(&path, &model.file).unwrap();
            learned.text(section(&model), RECIPE_KEY).unwrap().to_owned()
        };
        // Two runs start at once; the result of the first to finish is kept.
        let (mut first, second) = (maker(&automatic, false), maker(&automatic, false));
        second.save().unwrap();
        first.finish(levels).unwrap();
        assert!(matches!(second.save(), Err(Error::NewerResult { .. })));
        first.save().unwrap();
        // An automatic run for another text replaces that result.
        maker(&other, false).save().unwrap();
        assert_eq!(recipe(), other);
        // An explicitly requested run replaces every result, and automatic runs do not replace its
        // own.
        let asked = maker("asked", true);
        asked.save().unwrap();
        for mut late in [first, second] {
            assert!(matches!(late.finish(levels), Err(Error::NewerResult { .. })));
        }
        assert_eq!(recipe(), "asked");
        asked.save().unwrap();
    }
}
