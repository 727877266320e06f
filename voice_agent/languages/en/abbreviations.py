"""English abbreviations: how they are said, and whether their full stop can end a sentence."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Said as; the key is lower case without full stops.
SPOKEN: dict[str, str] = {
    "dr": "doctor",
    "mr": "mister",
    "mrs": "missus",
    "ms": "miz",
    "prof": "professor",
    "st": "saint",
    "mt": "mount",
    "jr": "junior",
    "sr": "senior",
    "gen": "general",
    "col": "colonel",
    "sgt": "sergeant",
    "capt": "captain",
    "lt": "lieutenant",
    "rev": "reverend",
    "hon": "honorable",
    "gov": "governor",
    "sen": "senator",
    "rep": "representative",
    "vs": "versus",
    "eg": "for example",
    "ie": "that is",
    "etc": "et cetera",
    "approx": "approximately",
    "dept": "department",
    "est": "established",
    "inc": "incorporated",
    "ltd": "limited",
    "corp": "corporation",
    "ave": "avenue",
    "blvd": "boulevard",
    "rd": "road",
    "apt": "apartment",
    "fig": "figure",
    "ext": "extension",
    "tel": "telephone",
    "min": "minutes",
    "max": "maximum",
    "jan": "January",
    "feb": "February",
    "mar": "March",
    "apr": "April",
    "jun": "June",
    "jul": "July",
    "aug": "August",
    "sep": "September",
    "sept": "September",
    "oct": "October",
    "nov": "November",
    "dec": "December",
    "mon": "Monday",
    "tue": "Tuesday",
    "tues": "Tuesday",
    "wed": "Wednesday",
    "thu": "Thursday",
    "thurs": "Thursday",
    "fri": "Friday",
    "sat": "Saturday",
    "sun": "Sunday",
}

# Said long without their full stop too.
STOPLESS = words("dr mr mrs ms vs etc jr sr ltd")

# In lower case these are words of their own, which may end a sentence.
CAPITALISED = words(
    "gen col rev hon rep sen inc fig ave ext mar sun sat wed mon fri apt may est jun jul oct dec"
)

# Said so after a name and not before one: "Main St.", but "St. John".
AFTER_NAME = {"st": "street", "dr": "drive"}

# Their full stop never ends a sentence: something always follows.
NEVER_LAST = words(
    "dr mr mrs ms prof mt gen col sgt capt lt rev hon gov sen rep vs eg ie approx fig messrs"
    " adm cmdr maj viz cf ca al"
)

# Their full stop ends a sentence only before a capital letter.
MAYBE_LAST = words(
    "am pm us uk un eu etc inc ltd co corp dc phd md ba bc ad jr sr est dept ave blvd rd apt ext"
    " tel min max jan feb mar apr jun jul aug sep sept oct nov dec tue tues wed thu thurs fri"
    " ny la usa"
)

# Their full stop ends a sentence unless a number follows ("No. 5", "p. 12").
BEFORE_NUMBER = words("no nos p pp vol ch sec art")

# Acronyms with a vowel that are said by their letters; those without one are anyway.
LETTERS = words(
    "AA AAA AC ADHD AI AKA API APR ATM ATV AWS BA CAD CEO CFO CIA CIO COO CPA CPU CTO DIY DNA"
    " DOA DOB DUI ECG EKG EMT ENT ER ESL ETA EU EV FAQ FBI FYI GPA GPU HIV HOA IBM ICU ID IDE"
    " IOU IP IPO IQ IRA IRS ISO ISP IT IV IVF IVR KPI LA LED MBA MIA MIT MRI NBA NYC OCD OJ OTP PDA"
    " PTA PTO QA RNA ROI RSVP SEO SLA SOS SUV TBA UAE UFO UI UK UN UPS URL US"
    " USA USB UTC UTI UV UX VAT VIP VOD WHO YTD"
)

# Sounds and words that have no vowel and are no acronyms.
SOUNDS = words("BRR BRRR GRR HM HMM HMMM MHM MM MMM PFFT PSST PST SH SHH SHHH TSK ZZZ")
