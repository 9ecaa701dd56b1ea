//! Leno's Helm chart, which is part of this program.

use super::template::{Scope, render};
use super::values;
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::PathBuf;

/// The namespace of Leno, which its identities name.
pub(crate) const NAMESPACE: &str = "leno-system";

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../../kubernetes/chart/", $name)))),*]
    };
}

/// In the order in which a cluster takes them.
const TEMPLATES: &[(&str, &str)] = files!(
    "templates/namespace.yaml",
    "templates/definitions.yaml",
    "templates/rbac.yaml",
    "templates/network.yaml",
    "templates/controller.yaml",
    "templates/agent.yaml",
    "templates/cni.yaml",
    "templates/monitoring.yaml",
);
/// What runs before Leno is removed (a hook of Helm).
const RELEASE: &[(&str, &str)] = files!("templates/release.yaml");
/// The definitions of Leno's kinds, by the plural of each.
pub(crate) const DEFINITIONS: [(&str, &str); 4] = [
    ("externals", include_str!("../../../../kubernetes/chart/definitions/externals.yaml")),
    ("meshes", include_str!("../../../../kubernetes/chart/definitions/meshes.yaml")),
    ("namespacequotas", include_str!("../../../../kubernetes/chart/definitions/namespacequotas.yaml")),
    ("policies", include_str!("../../../../kubernetes/chart/definitions/policies.yaml")),
];
const FILES: &[(&str, &str)] = files!(
    "definitions/externals.yaml",
    "definitions/meshes.yaml",
    "definitions/namespacequotas.yaml",
    "definitions/policies.yaml",
    "dashboards/function.json",
    "dashboards/mesh.json",
    "dashboards/nodes.json",
);
const VALUES: &str = include_str!("../../../../kubernetes/chart/values.yaml");
const SCHEMA: &str = include_str!("../../../../kubernetes/chart/values.schema.json");

/// Values of the chart, as for `helm install`.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Settings {
    /// Image with Leno's programs, with its tag or digest. The same as `--set image=IMAGE`.
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// File with values of the chart (kubernetes/chart/values.yaml has all), in YAML.
    #[arg(short, long, value_name = "FILE")]
    values: Vec<PathBuf>,
    /// One value of the chart: `controller.replicas=3`.
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
}

impl Settings {
    /// The chart with these values.
    pub(crate) fn chart(&self, api_versions: Vec<String>) -> Result<Chart> {
        let mut all = values::read(VALUES).context("the chart's values.yaml")?;
        // Helm users have `--create-namespace` for this.
        values::merge(&mut all, values::at("createNamespace", true.into()));
        for file in &self.values {
            let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
            values::merge(&mut all, values::read(&text).with_context(|| file.display().to_string())?);
        }
        for setting in &self.set {
            values::merge(&mut all, values::setting(setting)?);
        }
        if let Some(image) = &self.image {
            values::merge(&mut all, values::at("image", image.as_str().into()));
        }
        let schema: Value = serde_json::from_str(SCHEMA).context("the chart's values.schema.json")?;
        values::check(&schema, &all, "")?;
        Ok(Chart { values: all, api_versions })
    }
}

/// The chart with its values.
pub(crate) struct Chart {
    pub values: Value,
    api_versions: Vec<String>,
}

impl Chart {
    /// The objects of an installation, as YAML.
    pub(crate) fn objects(&self) -> Result<String> {
        self.render(TEMPLATES)
    }

    /// The objects that have the agents let go of all pods.
    pub(crate) fn release(&self) -> Result<String> {
        self.render(RELEASE)
    }

    fn render(&self, templates: &[(&str, &str)]) -> Result<String> {
        let scope = Scope { values: &self.values, file, api_versions: &self.api_versions, namespace: NAMESPACE };
        let mut text = String::new();
        for (name, template) in templates {
            let rendered = render(template, &scope).with_context(|| (*name).to_owned())?;
            if !rendered.trim().is_empty() {
                text.push_str("---\n");
                text.push_str(rendered.trim_start_matches('\n').trim_start_matches("---\n"));
                if !text.ends_with('\n') {
                    text.push('\n');
                }
            }
        }
        Ok(text)
    }
}

fn file(name: &str) -> Option<&'static str> {
    FILES.iter().find(|(found, _)| *found == name).map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use leno_config::foreign_documents;
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    fn settings(set: &[&str]) -> Settings {
        Settings { set: set.iter().map(|it| (*it).to_owned()).collect(), ..Settings::default() }
    }

    fn chart(set: &[&str], api_versions: &[&str]) -> Result<Chart> {
        settings(set).chart(api_versions.iter().map(|it| (*it).to_owned()).collect())
    }

    /// Kind and name of each object.
    fn names(text: &str) -> BTreeSet<String> {
        let objects = foreign_documents(Path::new("chart"), text).unwrap_or_else(|problems| panic!("{problems:?}"));
        let field = |node: &leno_config::Node, path: &[&str]| {
            let found = path.iter().try_fold(node, |node, name| match &node.value {
                leno_config::Value::Map(entries) => {
                    entries.iter().find(|(key, _)| key.text == *name).map(|(_, value)| value)
                }
                _ => None,
            });
            match found.map(|node| &node.value) {
                Some(leno_config::Value::Scalar { text, .. }) => text.clone(),
                _ => panic!("no {path:?}"),
            }
        };
        objects.iter().map(|it| format!("{} {}", field(it, &["kind"]), field(it, &["metadata", "name"]))).collect()
    }

    #[test]
    fn values_choose_the_objects() {
        let few = ["image=x", "cni.enabled=false", "networkPolicy=false", "definitions.install=false"];
        let few = names(&chart(&few, &[]).unwrap().objects().unwrap());
        for name in ["Namespace leno-system", "Deployment leno-controller", "DaemonSet leno-agent"] {
            assert!(few.contains(name), "{name}: {few:?}");
        }
        let all = ["image=x", "dashboards=true", "resourceQuota=true"];
        let all = names(&chart(&all, &["monitoring.coreos.com/v1"]).unwrap().objects().unwrap());
        let more: Vec<_> = all.difference(&few).map(String::as_str).collect();
        let wanted = [
            "ConfigMap leno-dashboard-function",
            "ConfigMap leno-dashboard-mesh",
            "ConfigMap leno-dashboard-nodes",
            "CustomResourceDefinition externals.leno.dev",
            "CustomResourceDefinition meshes.leno.dev",
            "CustomResourceDefinition namespacequotas.leno.dev",
            "CustomResourceDefinition policies.leno.dev",
            "DaemonSet leno-cni",
            "NetworkPolicy leno-controller",
            "NetworkPolicy leno-deny",
            "ResourceQuota leno-critical",
            "ServiceMonitor leno-controller",
        ];
        assert_eq!(more, wanted);
    }

    #[test]
    fn definitions_are_kept_unless_the_values_say_otherwise() {
        let count = |set: &[&str]| chart(set, &[]).unwrap().objects().unwrap().matches("resource-policy: keep").count();
        assert_eq!(count(&["image=x"]), 4);
        assert_eq!(count(&["image=x", "definitions.keep=false"]), 0);
    }

    #[test]
    fn wrong_values_are_refused() {
        for (set, reason) in [
            (&["cni.enable=false"] as &[_], "cni.enable"),
            (&["controller.replicas=0"], "controller.replicas"),
            (&["controller.replicas=two"], "controller.replicas"),
            (&["imagePullPolicy=Sometimes"], "Always, IfNotPresent, Never"),
            (&["agent=1"], "agent"),
            (&["image"], "NAME=VALUE"),
            (&["agent.tolerations=[]"], "--values"),
        ] {
            let error = chart(set, &[]).err().map(|error| format!("{error:#}")).unwrap_or_default();
            assert!(error.contains(reason), "{set:?}: {error}");
        }
        let error = format!("{:#}", chart(&[], &[]).unwrap().objects().unwrap_err());
        assert!(error.contains("set image"), "{error}");
    }

    /// A file of the chart that this program does not have would be rendered by Helm alone.
    #[test]
    fn the_program_has_all_files_of_the_chart() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kubernetes/chart");
        let known: BTreeSet<String> =
            TEMPLATES.iter().chain(RELEASE).chain(FILES).map(|(name, _)| (*name).to_owned()).collect();
        let mut found = BTreeSet::new();
        for below in ["templates", "definitions", "dashboards"] {
            for entry in fs::read_dir(folder.join(below)).unwrap() {
                found.insert(format!("{below}/{}", entry.unwrap().file_name().to_string_lossy()));
            }
        }
        // A text for people, which only Helm prints.
        found.remove("templates/NOTES.txt");
        assert_eq!(known, found);
    }
}
