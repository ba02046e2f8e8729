//! Results of a run: a figure for each turn, by workload and subject, and the failures in words.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// All results of a run.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Results {
    /// Workloads in the order in which they ran.
    pub(crate) workloads: Vec<Workload>,
}

/// One workload.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Workload {
    pub(crate) name: String,
    pub(crate) subjects: Vec<Taken>,
}

/// Results of one subject.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Taken {
    pub(crate) subject: String,
    /// By name, with its unit in it; a number for each turn.
    pub(crate) figures: BTreeMap<String, Vec<f64>>,
    /// Reason for which its figures are invalid.
    pub(crate) problem: Option<String>,
}

impl Results {
    /// Records a figure of one turn.
    pub(crate) fn note(&mut self, workload: &str, subject: &str, figure: &str, value: f64) {
        if value.is_finite() {
            let figures = &mut self.taken(workload, subject).figures;
            figures.entry(figure.to_owned()).or_default().push(value);
        }
    }

    /// Records a failure; the first one counts.
    pub(crate) fn fail(&mut self, workload: &str, subject: &str, because: &str) {
        let because = because.replace(['\n', '|'], " ");
        self.taken(workload, subject).problem.get_or_insert(because);
    }

    /// Whether there was a failure.
    pub(crate) fn has_failed(&mut self, workload: &str, subject: &str) -> bool {
        self.taken(workload, subject).problem.is_some()
    }

    /// Median over all turns; `None` if any response was wrong.
    pub(crate) fn median(&self, workload: &str, subject: &str, figure: &str) -> Option<f64> {
        let workload = self.workloads.iter().find(|known| known.name == workload)?;
        workload.subjects.iter().find(|known| known.subject == subject)?.median(figure)
    }

    fn taken(&mut self, workload: &str, subject: &str) -> &mut Taken {
        let at = self.workloads.iter().position(|known| known.name == workload);
        let at = at.unwrap_or_else(|| {
            self.workloads.push(Workload { name: workload.to_owned(), subjects: Vec::new() });
            self.workloads.len() - 1
        });
        let subjects = &mut self.workloads[at].subjects;
        let at = subjects.iter().position(|known| known.subject == subject);
        let at = at.unwrap_or_else(|| {
            subjects.push(Taken { subject: subject.to_owned(), ..Taken::default() });
            subjects.len() - 1
        });
        &mut subjects[at]
    }
}

impl Taken {
    pub(crate) fn median(&self, figure: &str) -> Option<f64> {
        if self.problem.is_some() {
            return None;
        }
        let mut values = self.figures.get(figure)?.clone();
        values.sort_by(f64::total_cmp);
        let (half, is_even) = (values.len() / 2, values.len() % 2 == 0);
        match is_even {
            true => Some((values.get(half.checked_sub(1)?)? + values.get(half)?) / 2.0),
            false => values.get(half).copied(),
        }
    }
}
