import pytest

from bixse.data.task_instructions import Instructions, load_instructions
from bixse.errors import ConfigError, InputError

TABLE = """
[tasks.claims]
instructions = ["Find support for the claim"]

[tasks.twins]
instructions = ["Find the same question", "Find a duplicate"]
symmetric = true
template = "{instruction}:\\n"
"""


def table_file(folder, text=TABLE):
    path = folder / "table.toml"
    path.write_text(text, encoding="utf-8")
    return path


class TestUnhappyPaths:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("[tasks.a", "got no valid TOML"),
            ("[tasks.a]\ninstructions = []", "tasks.a.instructions"),
            ("[tasks.a]\ninstruction = ['x']", "tasks.a.instruction"),
            ("template = 'Query: {instruction}'", "a line break at the end"),
            ("template = 'no place\\n'", "expected {instruction} once"),
            ("[tasks.query]\ninstructions = ['x']", "rename 'query'"),
            ("[tasks.a]\ninstructions = ['x']\ntemplate = 'x'", "expected {instruction} once"),
            ("defautl = 'x'", "defautl"),
        ],
    )
    def test_a_table_that_cannot_be_used(self, tmp_path, text, said):
        with pytest.raises(ConfigError) as caught:
            load_instructions(table_file(tmp_path, text))
        assert said in str(caught.value)
        assert "table.toml" in str(caught.value)

    def test_a_missing_file(self, tmp_path):
        with pytest.raises(InputError, match="expected a readable file"):
            load_instructions(tmp_path / "none.toml")

    def test_a_task_without_instruction_is_named_with_the_closest_one(self, tmp_path):
        with pytest.raises(InputError, match="got task 'claim'; expected one of claims, twins; fix: did you mean"):
            load_instructions(table_file(tmp_path)).prompt("claim", "query")

    def test_all_tasks_without_instruction_are_named_together(self, tmp_path):
        with pytest.raises(InputError, match=r"\('a', rows without a task\)"):
            load_instructions(table_file(tmp_path)).check_tasks("pairs", ["claims", "a", None, "a"])


def test_symmetric_tasks_put_the_instruction_before_documents_too(tmp_path):
    table = load_instructions(table_file(tmp_path))
    assert table.prompt("claims", "query") == "Instruct: Find support for the claim\nQuery:\n"
    assert table.prompt("claims", "document") == ""
    assert table.prompt("twins", "query", 1) == table.prompt("twins", "document", 1) == "Find a duplicate:\n"
    assert table.prompts() == {
        "claims": table.prompt("claims", "query"),
        "twins": "Find the same question:\n",
        "document": "",
    }


def test_a_default_holds_for_every_other_task_and_for_none():
    table = Instructions(default="Find it")
    assert table.prompt(None, "query") == table.prompt("anything", "query") == "Instruct: Find it\nQuery:\n"
    assert table.prompts()["query"] == "Instruct: Find it\nQuery:\n"


def test_a_table_of_one_task_needs_no_default():
    table = Instructions(tasks={"twins": {"instructions": ["Same"], "symmetric": True}})
    assert table.prompts()["query"] == table.prompts()["document"] == "Instruct: Same\nQuery:\n"


def test_the_papers_table():
    table = load_instructions("paper")
    assert table.default == "Retrieve the most relevant passages to the given query"
    assert {task for task in table.tasks if table.of(task).symmetric} == {"nli", "quora_duplicates"}
    assert table.choices("nli") == table.choices("quora_duplicates") == 2
    assert table.of("nq") == table.of("miracl") == table.of("mrtydi")
    assert table.of("a task of lightblue's").instructions == (table.default,)


def test_the_papers_table_from_a_settings_file_in_another_folder(tmp_path):
    assert load_instructions(tmp_path / "paper") == load_instructions("paper")
    (tmp_path / "paper").write_text(TABLE, encoding="utf-8")
    assert set(load_instructions(tmp_path / "paper").tasks) == {"claims", "twins"}


def test_the_hash_is_of_the_content_not_of_the_file(tmp_path):
    table = load_instructions(table_file(tmp_path))
    assert table.content_hash() == load_instructions(table_file(tmp_path, "# a note\n" + TABLE)).content_hash()
    assert table.content_hash() != load_instructions(table_file(tmp_path, TABLE.replace("same", "very"))).content_hash()
