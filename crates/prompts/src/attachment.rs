//! Attachments of a prompt: images, audio and files as MCP content blocks.
//!
//! They contain no arguments, so a block is rendered once, when the folder is read.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

/// Content block that a file becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttachmentKind {
    Image,
    Audio,
    Resource,
}

/// Renders the bytes of the file at `path` as a content block; `library` is the name of the folder.
pub(super) fn render(
    kind: AttachmentKind,
    library: &str,
    path: &str,
    bytes: Vec<u8>,
) -> Result<Box<RawValue>, String> {
    let block = match kind {
        AttachmentKind::Image => AttachmentBlock::Image {
            data: BASE64_STANDARD.encode(&bytes),
            mime_type: known(path, kind)?,
        },
        AttachmentKind::Audio => AttachmentBlock::Audio {
            data: BASE64_STANDARD.encode(&bytes),
            mime_type: known(path, kind)?,
        },
        AttachmentKind::Resource => {
            let uri = uri(library, path);
            let mime_type = mime_type(path);
            let resource = match String::from_utf8(bytes) {
                Ok(text) => {
                    Resource::Text { uri, mime_type: mime_type.unwrap_or("text/plain"), text }
                }
                Err(not_text) => Resource::Blob {
                    uri,
                    mime_type: mime_type.unwrap_or("application/octet-stream"),
                    blob: BASE64_STANDARD.encode(not_text.as_bytes()),
                },
            };
            AttachmentBlock::Resource { resource }
        }
    };
    to_raw_value(&block).map_err(|error| format!("`{path}`: {error}"))
}

/// Whether this path has an audio extension.
pub(super) fn is_audio(path: &str) -> bool {
    mime_type(path).is_some_and(|mime_type| mime_type.starts_with("audio/"))
}

fn known(path: &str, kind: AttachmentKind) -> Result<&'static str, String> {
    let (family, word) =
        if kind == AttachmentKind::Image { ("image/", "an image") } else { ("audio/", "a sound") };
    mime_type(path).filter(|mime_type| mime_type.starts_with(family)).ok_or_else(|| {
        format!(
            "`{path}` does not have the extension of {word} \
                 (embed it with `<!-- embed: … -->` if it is another file)"
        )
    })
}

/// Builds a URI with its own scheme: a `file:` URI would tell clients where the folder is, and
/// invite them to open it on their own disk.
fn uri(library: &str, path: &str) -> String {
    let mut uri = String::from("prompt-library://");
    push_encoded(&mut uri, library);
    for segment in path.split('/').filter(|segment| !matches!(*segment, "" | ".")) {
        uri.push('/');
        push_encoded(&mut uri, segment);
    }
    uri
}

fn push_encoded(uri: &mut String, text: &str) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            uri.push(char::from(byte));
        } else {
            uri.push_str(&format!("%{byte:02X}"));
        }
    }
}

fn mime_type(path: &str) -> Option<&'static str> {
    let extension = path.rsplit_once('.')?.1.to_ascii_lowercase();
    MIME_TYPES.iter().find(|(known, _)| *known == extension).map(|(_, mime_type)| *mime_type)
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase", rename_all_fields = "camelCase")]
enum AttachmentBlock {
    Image { data: String, mime_type: &'static str },
    Audio { data: String, mime_type: &'static str },
    Resource { resource: Resource },
}

#[derive(Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
enum Resource {
    Text { uri: String, mime_type: &'static str, text: String },
    Blob { uri: String, mime_type: &'static str, blob: String },
}

/// Media types by file extension, which the author chose; other files are plain text or plain
/// bytes.
const MIME_TYPES: [(&str, &str); 37] = [
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("gif", "image/gif"),
    ("webp", "image/webp"),
    ("avif", "image/avif"),
    ("bmp", "image/bmp"),
    ("svg", "image/svg+xml"),
    ("mp3", "audio/mpeg"),
    ("wav", "audio/wav"),
    ("ogg", "audio/ogg"),
    ("oga", "audio/ogg"),
    ("opus", "audio/ogg"),
    ("m4a", "audio/mp4"),
    ("aac", "audio/aac"),
    ("flac", "audio/flac"),
    ("weba", "audio/webm"),
    ("md", "text/markdown"),
    ("markdown", "text/markdown"),
    ("csv", "text/csv"),
    ("html", "text/html"),
    ("htm", "text/html"),
    ("css", "text/css"),
    ("js", "text/javascript"),
    ("mjs", "text/javascript"),
    ("ts", "text/x-typescript"),
    ("rs", "text/x-rust"),
    ("py", "text/x-python"),
    ("go", "text/x-go"),
    ("java", "text/x-java"),
    ("c", "text/x-c"),
    ("sh", "text/x-shellscript"),
    ("json", "application/json"),
    ("yaml", "application/yaml"),
    ("yml", "application/yaml"),
    ("toml", "application/toml"),
    ("pdf", "application/pdf"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn check(kind: AttachmentKind, path: &str, bytes: &[u8], expected: Result<&str, &str>) {
        let rendered = render(kind, "team prompts", path, bytes.to_vec());
        assert_eq!(rendered.as_ref().map(|block| block.get()).map_err(String::as_str), expected);
    }

    #[test]
    fn each_form_is_the_content_block_of_the_protocol() {
        check(
            AttachmentKind::Image,
            "a.PNG",
            b"\x89PNG",
            Ok(r#"{"type":"image","data":"iVBORw==","mimeType":"image/png"}"#),
        );
        check(
            AttachmentKind::Audio,
            "a.mp3",
            b"ID3",
            Ok(r#"{"type":"audio","data":"SUQz","mimeType":"audio/mpeg"}"#),
        );
        check(
            AttachmentKind::Resource,
            "./docs/a b.md",
            b"# A",
            Ok(
                r##"{"type":"resource","resource":{"uri":"prompt-library://team%20prompts/docs/a%20b.md","mimeType":"text/markdown","text":"# A"}}"##,
            ),
        );
        check(
            AttachmentKind::Resource,
            "a.bin",
            b"\xff\x00",
            Ok(
                r#"{"type":"resource","resource":{"uri":"prompt-library://team%20prompts/a.bin","mimeType":"application/octet-stream","blob":"/wA="}}"#,
            ),
        );
    }

    #[test]
    fn the_extensions_that_are_told_are_images_and_sounds() {
        let page = include_str!("../../../docs/prompt-library.md");
        let row = |start: &str| {
            let row = page.lines().find_map(|line| line.split_once(start)).expect(start).1;
            row.trim_matches([' ', '|']).split(", ").collect::<Vec<_>>()
        };
        for (kind, start) in
            [(AttachmentKind::Image, "| image: "), (AttachmentKind::Audio, "| audio: ")]
        {
            for extension in row(start) {
                let path = format!("a.{extension}");
                assert!(render(kind, "p", &path, Vec::new()).is_ok(), "{path}");
            }
        }
    }

    #[test]
    fn a_file_that_is_no_image_is_not_sent_as_one() {
        check(
            AttachmentKind::Image,
            "a.txt",
            b"",
            Err(
                "`a.txt` does not have the extension of an image (embed it with `<!-- embed: … -->` if it is another file)",
            ),
        );
    }
}
