//! `thermocline profile`.

use crate::cli::args::{ProfileArgs, ProfileSourceArgs};
use crate::cli::failure::{Exit, Failure};
use crate::cli::interrupt::Interrupt;
use crate::cli::output::{Output, write_file};
use crate::cli::progress;
use crate::cli::svg::origin;
use crate::cli::terminal::Terminal;
use crate::engine::{EngineOptions, Sparsity};
use crate::gguf;
use crate::learned::{self, Section, SideFile};
use crate::profile::{self, Counts, Gatherer, Profile, Text};
use runtime::{Opened, Runtime, activation_name};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The built-in calibration text.
pub(super) const TEXT: &str = include_str!("../../../assets/calibration.txt");
/// Tokens computed and observed together.
const BATCH: usize = 64;
/// Interval between saves of an unfinished profile.
const SAVE_EVERY: Duration = Duration::from_secs(30);

/// A text to run a model on.
#[derive(Clone, Copy, Debug)]
pub(super) struct SourceText<'a> {
    /// The user's text; `None` selects the built-in text.
    pub(super) text: Option<&'a str>,
    /// Reason for an automatic profile, stored with it; empty if the user asked for the profile.
    pub(super) why: &'a str,
}

/// Creates, completes or imports the profile, prints a report and, if requested, writes a plot.
///
/// # Errors
/// Errors of loading, observing and writing; Ctrl-C. The same command then resumes the profile.
pub(crate) fn run(args: &ProfileArgs, terminal: &Terminal) -> Result<(), Failure> {
    let text = args.source.text()?;
    let interrupt = Interrupt::install()?;
    let runtime = Runtime::new(args.model.options(), terminal.stoppable_observer(&interrupt))?;
    let opened = runtime.open(args.model.model.as_deref())?.decoder()?;
    let text = SourceText { text: text.as_deref(), why: "" };
    let index = args.compare.as_deref().map(|path| index(path, &opened)).transpose()?;
    let (job, profile) = make(&args.source, text, &opened, &runtime, &interrupt, terminal)?;
    if let Some(path) = &args.plot {
        let name = Path::new(job.opened.model.file.name());
        let name = name.file_name().unwrap_or(name.as_os_str()).to_string_lossy();
        let cpu = runtime.machine().cpu.info().description.clone();
        let counts = Counts::of(&job.opened.model);
        write_file(path, &profile::svg(&profile, counts, &name, &origin(&cpu)))?;
        terminal.note(&format!("the plot is in '{}'", path.display()));
    }
    let mut out = Output::stdout();
    if args.json {
        out.line(&format!("{:#}", job.json(&profile, index.as_ref())))?
    } else {
        out.write(job.text(&profile, index.as_ref()))?
    }
    out.flush()
}

/// PowerInfer's list of neurons for a GPU at `path`.
fn index(path: &Path, opened: &Opened) -> Result<profile::GpuIndex, Failure> {
    let file = gguf::File::open(path).map_err(profile::ImportError::from)?;
    Ok(profile::gpu_index(&file, &opened.model.neurons())?)
}

/// Creates, completes or imports the profile of `opened`, and saves it.
///
/// # Errors
/// As [`run`].
pub(super) fn make<'a>(
    args: &'a ProfileSourceArgs,
    text: SourceText<'a>,
    opened: &'a Opened,
    runtime: &Runtime,
    interrupt: &'a Interrupt,
    terminal: &'a Terminal,
) -> Result<(ProfileJob<'a>, Profile), Failure> {
    let place = output_path(args, opened, runtime)?;
    let job = ProfileJob { args, text, terminal, opened, interrupt, place };
    let found = job.existing_profile()?;
    let profile = match &args.import {
        Some(folder) => {
            let profile = profile::import(folder, &opened.model)?;
            job.save(&profile)?;
            profile
        }
        None => job.measure(found, runtime)?,
    };
    Ok((job, profile))
}

/// Whether a profile was collected automatically, so that a requested profile may replace it.
pub(super) fn is_automatic(profile: &Profile) -> bool {
    profile.source() == super::auto_profile::SOURCE
        || profile.source().starts_with(learned::FIRST_USE)
}

/// Path of the existing or new profile.
fn output_path(
    args: &ProfileSourceArgs,
    opened: &Opened,
    runtime: &Runtime,
) -> Result<PathBuf, Failure> {
    if let Some(path) = &args.out {
        learned::check_writable(path)?;
        return Ok(path.clone());
    }
    let folder = runtime.options().computation.folder();
    Ok(learned::writable_path(&opened.model.file, folder)?)
}

/// The inputs of one profiling run.
#[derive(Debug)]
pub(super) struct ProfileJob<'a> {
    args: &'a ProfileSourceArgs,
    text: SourceText<'a>,
    terminal: &'a Terminal,
    opened: &'a Opened,
    interrupt: &'a Interrupt,
    place: PathBuf,
}

impl ProfileJob<'_> {
    /// The existing profile; `None` if the file has none, or if a new profile replaces it.
    fn existing_profile(&self) -> Result<Option<Profile>, Failure> {
        if self.args.restart || self.args.import.is_some() || !self.place.exists() {
            return Ok(None);
        }
        let learned = SideFile::open(&self.place, &self.opened.model.file)?;
        Ok(Profile::read(&learned, &self.opened.model)?)
    }

    fn save(&self, profile: &Profile) -> Result<(), Failure> {
        let model = &self.opened.model;
        let contents = profile.contents(model);
        let (file, interrupt) = (&model.file, self.interrupt.flag());
        let (section, restart) = (Section::Profile, self.args.restart);
        learned::save_if(&self.place, file, section, &contents, restart, interrupt, &|_| true)?;
        Ok(())
    }

    /// The profile to continue: `found`, or a new profile.
    fn start_or_resume(&self, found: Option<Profile>, text: &Text) -> Result<Profile, Failure> {
        let model = &self.opened.model;
        match found {
            Some(profile) if text.continues(&profile) => Ok(profile),
            Some(profile)
                if profile.is_finished()
                    && !is_automatic(&profile)
                    && !self.args.wants_new_profile() =>
            {
                Ok(profile)
            }
            Some(profile)
                if !profile.is_finished() && !is_automatic(&profile) && !self.args.restart =>
            {
                let message = format!(
                    "{} has an unfinished profile of another text: {} of {} tokens",
                    self.place.display(),
                    profile.n_tokens(),
                    profile.n_wanted()
                );
                let help = "the same text (-f) and settings resume it, --restart replaces it";
                Err(Failure::usage(message).help(help))
            }
            Some(replaced) => {
                if !is_automatic(&replaced) {
                    let n = replaced.n_tokens();
                    self.terminal.note(&format!("replacing the stored profile of {n} tokens"));
                }
                Ok(text.start(model))
            }
            None => Ok(text.start(model)),
        }
    }

    /// Returns a finished profile: `found` if it is finished, else measures the missing tokens.
    fn measure(&self, found: Option<Profile>, runtime: &Runtime) -> Result<Profile, Failure> {
        let Opened { model, tokenizer } = self.opened;
        let text = self.text.text.unwrap_or(TEXT);
        let tokens = tokenizer
            .encode(text, true, false)
            .map_err(|e| Failure::new(Exit::Failed, "cannot tokenize the text").caused_by(&e))?;
        // An empty text still has a BOS token.
        if text.trim().is_empty() || tokens.is_empty() {
            let message = "the text is empty: nothing to profile";
            return Err(Failure::usage(message).help("pass a longer text with -f"));
        }
        let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        let n_ctx = runtime.fixed_context(runtime.options().n_ctx, model);
        let text =
            Text::new(&tokens, bos, n_ctx, self.args.tokens).with_source_prefix(self.text.why);
        let mut profile = self.start_or_resume(found, &text)?;
        if profile.is_finished() {
            let n = profile.n_tokens();
            self.terminal.note(&format!(
                "the stored profile of {n} tokens is complete; --restart measures a new one"
            ));
            return Ok(profile);
        }
        if profile.n_tokens() > 0 {
            let (done, all) = (profile.n_tokens(), profile.n_wanted());
            self.terminal.note(&format!("resuming after {done} of {all} tokens"));
        }
        let mut engine = self.interrupt.exit_during_load(|| {
            let settings = EngineOptions {
                n_ubatch: BATCH.min(text.n_ctx()),
                sparsity: Sparsity::Exact,
                placing: runtime.placing(model),
                ..runtime.settings(model, text.n_ctx())
            };
            runtime.load(model, settings)
        })?;
        let mut gatherer = Gatherer::new(model).map_err(crate::engine::Error::from)?;
        let [first, end] = [profile.n_tokens(), profile.n_wanted()].map(|n| n as usize);
        let bar = progress::counter(self.terminal, "profiling", first..end, "tokens");
        let (mut saved, mut failed) = (Instant::now(), None);
        let ended = profile::calibrate(
            &mut engine,
            &text,
            &mut profile,
            &mut gatherer,
            self.interrupt.flag(),
            &mut |profile, n_more| {
                bar.set_position((profile.n_tokens() + n_more).min(profile.n_wanted()));
                if n_more == 0 && saved.elapsed() > SAVE_EVERY && failed.is_none() {
                    failed = self.save(profile).err();
                    saved = Instant::now();
                }
            },
        );
        bar.finish_and_clear();
        if let Err(error) = ended {
            if profile.n_tokens() > 0 {
                self.save(&profile)?;
                let (done, all) = (profile.n_tokens(), profile.n_wanted());
                let note = format!("{done} of {all} tokens are saved; the same command resumes");
                self.terminal.note(&note);
            }
            return Err(error.into());
        }
        profile::finish(model, &mut profile);
        self.save(&profile)?;
        Ok(profile)
    }

    fn text(&self, profile: &Profile, index: Option<&profile::GpuIndex>) -> String {
        let summary = profile.summary();
        let counts = Counts::of(&self.opened.model);
        let share = counts.for_a_token(&format!("{:.2} %", 100.0 * summary.density));
        let mut out = format!("Tokens:            {}\n", profile.n_tokens());
        let (counted, never) = match counts {
            Counts::Active => ("Density", "Never fired"),
            Counts::AboveMean => {
                let activation = activation_name(&self.opened.model);
                out += &format!(
                    "Exactly zero:      no neuron ({activation}), so none is skipped without a loss\n"
                );
                ("Above the mean", "Never above")
            }
        };
        out += &format!(
            "{:<19}{share}\n\
             Hot neurons:       {:.2} % account for 80 % of the {}\n\
             {:<19}{:.2} %\n",
            format!("{counted}:"),
            100.0 * summary.hot,
            counts.events(),
            format!("{never}:"),
            100.0 * summary.never_fired,
        );
        let column = if counts == Counts::Active { "density" } else { "above the mean" };
        for (i, (density, hot)) in
            summary.density_by_layer.iter().zip(&summary.hot_by_layer).enumerate()
        {
            let (density, hot) = (100.0 * density, 100.0 * hot);
            out += &format!("  layer {i:<3} {column} {density:6.2} %, hot {hot:6.2} %\n");
        }
        if let Some(index) = index {
            out += &format!(
                "PowerInfer's list: {} neurons account for {:.2} % of the activations; the same number of hottest neurons for {:.2} %\n",
                index.n_neurons(),
                100.0 * profile.activation_share(&index.layers),
                100.0 * profile.hottest_share(index.n_neurons()),
            );
        }
        out + &format!("Stored in:         {}\n", self.place.display())
    }

    fn json(&self, profile: &Profile, index: Option<&profile::GpuIndex>) -> serde_json::Value {
        let summary = profile.summary();
        json!({
            "model": self.opened.model.file.name(),
            "file": self.place.display().to_string(),
            "source": profile.source(),
            "tokens": profile.n_tokens(),
            "counts": match Counts::of(&self.opened.model) {
                Counts::Active => "active",
                Counts::AboveMean => "above_mean",
            },
            "density": summary.density,
            "density_by_layer": summary.density_by_layer,
            "hot": summary.hot,
            "hot_by_layer": summary.hot_by_layer,
            "never": summary.never_fired,
            "compared": index.map(|index| json!({
                "neurons": index.n_neurons(),
                "vram_capacity": index.vram_capacity,
                "carried": profile.activation_share(&index.layers),
                "carried_by_hottest": profile.hottest_share(index.n_neurons()),
            })),
        })
    }
}
