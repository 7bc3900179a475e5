"""Two dozen questions that a person might ask, so that a first run needs no file. Written for this project."""

from cadenza.prompts.source import Row
from cadenza.record import Message

PROMPTS = (
    "Explain to a twelve-year-old why the sky is blue at noon and red in the evening.",
    "I have eggs, spinach, half an onion and stale bread. What can I cook in twenty minutes?",
    "Write a polite e-mail to my landlord: the heating has been off for three days.",
    "What is the difference between a process and a thread, and when would I pick which?",
    "Plan a weekend in Lisbon for two people who like museums but hate queues.",
    "Our team argues about tabs and spaces. Give me a fair summary of both sides and a way to settle it.",
    "Write a Python function that merges overlapping intervals, and explain its running time.",
    "How do vaccines teach the immune system? Start simple, then go into detail.",
    "Give me ten names for a small bakery that sells mostly sourdough.",
    "My houseplant has yellow leaves and wet soil. What should I check, and in which order?",
    "Summarise the causes of the First World War in five bullet points.",
    "Translate into French, Spanish and German: 'The early train was late again, so we missed the boat.'",
    "I am preparing for a job interview as a data analyst. Ask me five questions, with hints for good answers.",
    "What does a central bank do when inflation rises, and who feels it first?",
    "Write a short story about a lighthouse keeper who receives a letter meant for someone else.",
    "Compare heat pumps and gas boilers for a house from the 1970s: cost, comfort, climate.",
    "Here is my SQL: SELECT * FROM orders WHERE YEAR(created) = 2024; it is slow. Why, and how do I fix it?",
    "Suggest a four-week running plan for a beginner who can train three times a week.",
    "How does a lithium-ion battery wear out, and how should I charge my phone to slow that down?",
    "Draft a toast for my sister's wedding: warm, a little funny, at most two minutes.",
    "What should I know before adopting an older dog from a shelter?",
    "Explain the Monty Hall problem, then convince me with a small simulation in pseudocode.",
    "Which questions should I ask before signing a fixed-rate mortgage?",
    "Describe how a letter travels from a village post box to another continent.",
)

ROWS = [Row(messages=(Message(role="user", content=prompt),)) for prompt in PROMPTS]
