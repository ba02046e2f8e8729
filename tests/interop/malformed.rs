//! Third-party clients and an upstream with definitions that they cannot parse: each list arrives,
//! with all valid items.

use std::collections::BTreeSet;

use rmcp::model::{ArgumentInfo, CompleteRequestParams, Reference};
use serde_json::{Value, json};

use crate::clients::{Listener, legacy, modern, over_http};
use crate::differential::cells::{Client, Target};
use crate::fleet::{Fleet, soon};
use crate::parts::{part, script};
use crate::pipe::Era::{Legacy, Modern};

const LISTS: [(&str, &str); 4] = [
    ("prompt", "prompts/list"),
    ("tool", "tools/list"),
    ("resource", "resources/list"),
    ("template", "resources/templates/list"),
];

/// Names of the items of a kind that are to be listed.
fn expected(kind: &str) -> BTreeSet<String> {
    let lines = include_str!("../fixtures/malformed_definitions.txt").lines();
    let names = lines.filter(|line| !line.starts_with('#')).filter_map(|line| {
        let [of, becomes, _, definition] = line.splitn(4, " | ").collect::<Vec<_>>()[..] else {
            panic!("four parts: {line}")
        };
        if of != kind || becomes == "out" {
            return None;
        }
        let definition: Value = serde_json::from_str(definition).unwrap();
        let name =
            ["name", "uri", "uriTemplate"].into_iter().find_map(|it| definition[it].as_str());
        let prefix = if matches!(kind, "prompt" | "tool") { "evil__" } else { "" };
        Some(format!("{prefix}{}", name.unwrap()))
    });
    names.collect()
}

#[tokio::test]
async fn every_sdk_takes_every_list_whatever_an_upstream_lists() {
    let (python, server) = (part("mcp2/bin/python"), script("malformed_server.py"));
    let fleet =
        Fleet::plain(&format!("[upstreams.evil]\ncommand = {python:?}\nargs = [{server:?}]\n"));
    let mut served = fleet.serve().await;
    served.log.logged("upstream listed", "evil").await;
    let left_out = served.log.logged("items excluded from the list", "evil").await;
    assert!(left_out["problems"].as_str().unwrap().contains("cannot be used"), "{left_out}");

    let mut steps: Vec<_> =
        LISTS.map(|(_, method)| json!({ "do": "list", "method": method })).to_vec();
    let reference = json!({ "type": "ref/prompt", "name": "evil__good-1" });
    let argument = json!({ "name": "x", "value": "" });
    steps.push(json!({ "do": "complete", "params": { "ref": reference, "argument": argument } }));
    let steps = json!({ "capabilities": {}, "names": true, "steps": steps });
    for client in [Client::TypeScript1, Client::TypeScript2, Client::Python1, Client::Python2] {
        for era in client.eras() {
            let endings = client.run(*era, Target::Url(&served.endpoint()), None, &steps).await;
            for ((kind, method), names) in LISTS.iter().zip(&endings) {
                let names: BTreeSet<_> = names.split(' ').map(str::to_owned).collect();
                assert_eq!(names, expected(kind), "{method} of {client:?}, {era:?}");
            }
            assert_eq!(endings[LISTS.len()], "done", "{client:?}, {era:?}");
        }
    }
    for (era, lifecycle) in [(Legacy, legacy()), (Modern, modern())] {
        let client = over_http(&served, lifecycle, &Listener::default()).await;
        let prompts = soon(client.list_all_prompts()).await.unwrap();
        let tools = soon(client.list_all_tools()).await.unwrap();
        let resources = soon(client.list_all_resources()).await.unwrap();
        let templates = soon(client.list_all_resource_templates()).await.unwrap();
        let names: [BTreeSet<String>; 4] = [
            prompts.into_iter().map(|it| it.name).collect(),
            tools.into_iter().map(|it| it.name.into_owned()).collect(),
            resources.into_iter().map(|it| it.name).collect(),
            templates.into_iter().map(|it| it.name).collect(),
        ];
        assert_eq!(names, LISTS.map(|(kind, _)| expected(kind)), "rmcp, {era:?}");
        let reference = Reference::for_prompt("evil__good-1");
        let complete = CompleteRequestParams::new(reference, ArgumentInfo::new("x", ""));
        let completed = soon(client.complete(complete)).await.unwrap().completion;
        assert_eq!((completed.values.len(), completed.has_more), (100, Some(true)), "{era:?}");
        soon(client.cancel()).await.unwrap();
    }
    served.stop().await;
}
